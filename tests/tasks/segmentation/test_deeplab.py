"""DeepLabV3+ as released: its size, its strides and dilations, and its forward against a plain transcription."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.errors import UserError
from gpaco.tasks.segmentation.network import Segmenter, build

Weights = dict[str, Tensor]

# Parameters without classifier, auxiliary head and projector, counted on the released network.
RELEASED = {"resnet50": 17_688_176, "resnet18": 1_121_948}


@pytest.mark.parametrize("encoder", RELEASED)
def test_the_decoder_has_as_many_parameters_as_the_released_one(encoder: str) -> None:
    with torch.device("meta"):
        decoder = build(f"deeplabv3plus-{encoder}", 19).decoder
    assert sum(p.numel() for p in decoder.parameters()) == RELEASED[encoder]


@pytest.mark.parametrize("encoder", ["resnet50", "resnet18"])
def test_the_encoder_has_the_released_stem_strides_and_dilations(encoder: str) -> None:
    with torch.device("meta"):
        model = build(f"deeplabv3plus-{encoder}", 19).encoder.model
    stem = [m for m in model.conv1 if isinstance(m, nn.Conv2d)]
    assert [(m.out_channels, m.kernel_size[0], m.stride[0]) for m in stem] == [(32, 3, 2), (32, 3, 1), (64, 3, 1)]
    first = "conv2" if encoder == "resnet50" else "conv1"  # the convolution of a block with stride and dilation
    for stage, (stride, dilation) in enumerate(zip((1, 2, 1, 1), (1, 1, 2, 4), strict=True), 1):
        layers = [getattr(block, first) for block in model[f"layer{stage}"]]
        assert [m.stride[0] for m in layers] == [stride] + [1] * (len(layers) - 1)
        assert [m.dilation[0] for m in layers] == [max(1, dilation // 2)] + [dilation] * (len(layers) - 1)
        if encoder == "resnet18":
            assert all(block.conv2.dilation == block.conv2.padding == (1, 1) for block in model[f"layer{stage}"])


def plain_forward(network: Segmenter, images: Tensor) -> Tensor:
    """Class scores in evaluation mode, written down from the description with nothing but functions."""
    weights = {name: value.double() for name, value in network.state_dict().items()}

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var, scale, shift = (
            weights[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean[:, None, None]) / (var + 1e-5).sqrt()[:, None, None] * scale[:, None, None] + shift[
            :, None, None
        ]

    def layer(x: Tensor, name: str, dilation: int = 1) -> Tensor:
        weight = weights[f"{name}.0.weight"]
        groups = x.shape[1] // weight.shape[1]
        side = weight.shape[2] // 2 * dilation
        return norm(F.conv2d(x, weight, None, 1, side, dilation, groups), f"{name}.1").clamp_min(0)

    def pair(x: Tensor, name: str, dilation: int = 1) -> Tensor:
        return layer(layer(x, f"{name}.0", dilation), f"{name}.1")

    def block(x: Tensor, name: str, stride: int, dilation: int) -> Tensor:
        y = F.conv2d(x, weights[f"{name}.conv1.weight"], None, stride, dilation, dilation)
        y = F.conv2d(norm(y, f"{name}.bn1").clamp_min(0), weights[f"{name}.conv2.weight"], padding=1)
        if f"{name}.downsample.0.weight" in weights:
            x = norm(F.conv2d(x, weights[f"{name}.downsample.0.weight"], None, stride), f"{name}.downsample.1")
        return (norm(y, f"{name}.bn2") + x).clamp_min(0)

    x, stem = images.double(), "encoder.model.conv1"
    x = norm(F.conv2d(x, weights[f"{stem}.0.weight"], None, 2, 1), f"{stem}.1").clamp_min(0)
    x = norm(F.conv2d(x, weights[f"{stem}.3.weight"], None, 1, 1), f"{stem}.4").clamp_min(0)
    x = norm(F.conv2d(x, weights[f"{stem}.6.weight"], None, 1, 1), "encoder.model.bn1").clamp_min(0)
    x = F.max_pool2d(x, 3, 2, 1)
    stages = []
    for number, stride, dilation in ((1, 1, 1), (2, 2, 1), (3, 1, 2), (4, 1, 4)):
        x = block(x, f"encoder.model.layer{number}.0", stride, max(1, dilation // 2))
        x = block(x, f"encoder.model.layer{number}.1", 1, dilation)
        stages.append(x)
    low, last = stages[0], stages[-1]
    pooled = layer(last.mean((2, 3), keepdim=True), "decoder.pooled").expand(-1, -1, *last.shape[2:])
    branches = [pooled, layer(last, "decoder.branches.0")]
    branches += [pair(last, f"decoder.branches.{k}", rate) for k, rate in ((1, 12), (2, 24), (3, 36))]
    x = layer(torch.cat(branches, 1), "decoder.joined")
    x = F.interpolate(x, low.shape[2:], mode="bilinear", align_corners=False)
    x = torch.cat([x, layer(low, "decoder.low")], 1)
    x = pair(pair(x, "decoder.last.0"), "decoder.last.1")
    return F.conv2d(x, weights["classifier.1.weight"], weights["classifier.1.bias"])


@torch.no_grad()
def test_the_forward_equals_a_second_plain_transcription() -> None:
    torch.manual_seed(0)
    network = build("deeplabv3plus-resnet18", 5)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # as at the start, a norm would hide a forgotten one
            module.running_mean.normal_(std=0.1)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
            module.weight.uniform_(0.5, 1.5)
            module.bias.normal_(std=0.1)
    images = torch.randn(2, 3, 61, 90)
    scores = network.double().eval()(images.double()).logits
    torch.testing.assert_close(scores, plain_forward(network, images), rtol=1e-9, atol=1e-9)
    whole = F.interpolate(scores, (61, 90), mode="bilinear", align_corners=False)
    torch.testing.assert_close(network.classify(images.double()), whole)  # nothing is padded


def test_weights_with_the_names_of_openmmlab_fill_the_encoder(tmp_path: Path) -> None:
    network = build("deeplabv3plus-resnet18", 2)
    theirs = {}
    for name, value in network.encoder.model.state_dict().items():
        name = f"stem.{name.removeprefix('conv1.')}" if name.startswith("conv1.") else name
        theirs[f"stem.7.{name.removeprefix('bn1.')}" if name.startswith("bn1.") else name] = value.clone()
    save_file(theirs, tmp_path / "resnet18_v1c.safetensors")
    again = build("deeplabv3plus-resnet18", 2, weights=tmp_path / "resnet18_v1c.safetensors")
    mine, expected = again.encoder.state_dict(), network.encoder.state_dict()
    assert all(torch.equal(mine[name], value) for name, value in expected.items())


def test_an_encoder_that_cannot_be_dilated_is_refused() -> None:
    with pytest.raises(UserError, match="timm cannot dilate"):
        build("deeplabv3plus-swin-tiny", 2)
