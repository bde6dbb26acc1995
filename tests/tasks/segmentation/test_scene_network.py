"""The segmentation network: names, sizes, heads as released, weights of an encoder."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from gpaco.errors import UserError
from gpaco.tasks.segmentation.network import DECODERS, build, crop_step, normalization

STRIDES = {"unet": 1, "unetplusplus": 1, "manet": 1, "linknet": 1, "deeplabv3": 8, "pspnet": 8}  # of scores; others 4


@pytest.mark.slow
@pytest.mark.parametrize("decoder", DECODERS)
def test_every_decoder_gives_scores_embeddings_and_auxiliary_scores_and_all_that_trains_gets_a_gradient(
    decoder: str,
) -> None:
    """Without a gradient for each parameter several processes would wait for it for ever."""
    name, (height, width) = f"{decoder}-test_resnet", (128, 160)
    network = build(name, 5, dim=7)
    out = network(torch.randn(2, 3, height, width))
    stride = STRIDES.get(decoder, 4)
    assert out.logits.shape == (2, 5, height // stride, width // stride)
    tall, wide = out.embeddings.shape[2:]
    assert out.embeddings.shape[:2] == (2, 7)
    assert (tall, wide) == (height // max(4, stride), width // max(4, stride))
    torch.testing.assert_close(out.embeddings.norm(dim=1), torch.ones(2, tall, wide))
    assert out.aux_logits.shape[:2] == (2, 5)
    sum(part.sum() for part in out).backward()
    assert all((p.grad is not None) == p.requires_grad for p in network.parameters())
    plain = build(name, 5, dim=0, aux=False).eval()
    assert plain(torch.randn(2, 3, height, width)).embeddings is None
    assert plain.classify(torch.randn(1, 3, 20, 200)).shape == (1, 5, 20, 200)


def test_the_heads_are_the_released_ones() -> None:
    network = build("deeplabv3plus-resnet18", 19, channels=128)
    dropout, classifier = network.classifier
    assert isinstance(dropout, nn.Dropout2d)
    assert dropout.p == 0.1
    assert (classifier.in_channels, classifier.out_channels, classifier.kernel_size) == (128, 19, (1, 1))
    assert [type(m).__name__ for m in network.projector] == [*["Conv2d", "BatchNorm2d", "ReLU"] * 2, "Conv2d"]
    convolutions = [m for m in network.projector if isinstance(m, nn.Conv2d)]
    assert [(m.in_channels, m.out_channels) for m in convolutions] == [(128, 128), (128, 128), (128, 128)]
    first, *_, last = (m for m in network.aux if isinstance(m, nn.Conv2d))
    assert (first.in_channels, first.out_channels, first.kernel_size) == (256, 64, (3, 3))  # the last but one stage
    assert last.out_channels == 19


@pytest.mark.parametrize(("options", "last"), [({}, 8), ({"output_stride": 16}, 16)])
def test_deeplab_keeps_an_eighth_of_the_resolution_or_a_sixteenth_if_asked(options: dict[str, int], last: int) -> None:
    network = build("deeplabv3plus-resnet18", 2, dim=8, **options)
    features = network.encoder(torch.zeros(1, 3, 64, 64))
    assert [64 // f.shape[2] for f in features] == [4, 8, last, last]
    step = crop_step("deeplabv3plus-resnet18", last)
    assert network.eval()(torch.zeros(2, 3, 3 * step, 5 * step)).logits.shape[1] == 2


@torch.no_grad()
def test_any_picture_is_classified_at_its_own_size() -> None:
    network = build("deeplabv3plus-test_resnet", 3, dim=0, aux=False).eval()
    for size in ((1, 1), (33, 64), (50, 70)):
        assert network.classify(torch.randn(1, 3, *size)).shape == (1, 3, *size)
    whole = torch.randn(1, 3, 64, 64)
    expected = nn.functional.interpolate(network(whole).logits, (64, 64), mode="bilinear", align_corners=False)
    torch.testing.assert_close(network.classify(whole), expected)


def test_a_classifiers_file_fills_the_encoder_and_another_ones_is_refused(tmp_path: Path) -> None:
    classifier = timm.create_model("test_resnet", pretrained=False)
    file = tmp_path / "weights.safetensors"
    save_file(classifier.state_dict(), file)
    images = torch.randn(1, 3, 64, 64)
    for decoder, place in (("deeplabv3plus", 0), ("upernet", 2)):
        network = build(f"{decoder}-test_resnet", 3, weights=file)
        with torch.no_grad():
            stem = classifier.eval().maxpool(classifier.act1(classifier.bn1(classifier.conv1(images))))
            torch.testing.assert_close(network.eval().encoder(images)[place], classifier.layer1(stem))
    with pytest.raises(UserError, match=r"weights.safetensors does not fit this encoder: it lacks"):
        build("deeplabv3plus-resnet18", 3, weights=file)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deeplabv3pluss-resnet50", "did you mean 'deeplabv3plus-resnet50'"),
        ("upernet", "there is no segmentation model 'upernet'"),
        ("upernet-swin-tinny", "no encoder 'swin-tinny'; did you mean 'swin-tiny'"),
        ("resnet50", "write decoder-encoder"),
    ],
)
def test_a_name_that_is_none_says_the_nearest_one(name: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        build(name, 3)
    assert message in str(caught.value)


def test_images_are_normalized_as_the_encoder_is_used_to() -> None:
    assert normalization("deeplabv3plus-resnet50")[0] == (0.485, 0.456, 0.406)
    assert normalization("deeplabv3plus-efficientnet-lite0") == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert crop_step("deeplabv3plus-resnet50") == 8
    assert crop_step("upernet-swin-tiny") == 32


@pytest.mark.slow
def test_class_scores_of_a_lite_network_have_no_dropout_and_larger_weights_in_every_decoder() -> None:
    for name, dropout in (("deeplabv3plus-efficientnet-lite0", 0.0), ("deeplabv3plus-test_resnet", 0.1)):
        drop, scores = build(name, 3, channels=16).classifier
        assert drop.p == dropout
        assert (scores.weight.std() > 0.1) == (dropout == 0)


@pytest.mark.slow
def test_a_swin_takes_a_classifiers_weights_and_drops_no_path_unless_asked(tmp_path: Path) -> None:
    classifier = timm.create_model("swin_tiny_patch4_window7_224", pretrained=False)
    save_file(classifier.state_dict(), tmp_path / "swin.safetensors")
    network = build("upernet-swin-tiny", 3, weights=tmp_path / "swin.safetensors")
    mine, theirs = network.encoder.state_dict(), classifier.state_dict()
    for place in ("0.blocks.1.mlp.fc1.weight", "2.downsample.reduction.weight", "3.blocks.0.attn.qkv.weight"):
        (key,) = [key for key in mine if key.replace("layers_", "layers.").endswith(f"layers.{place}")]
        assert torch.equal(mine[key], theirs[f"layers.{place}"])
    rates = [m.drop_prob for m in network.encoder.modules() if hasattr(m, "drop_prob")]
    assert all(rate == 0 for rate in rates)
    dropping = build("upernet-swin-tiny", 3, drop_path=0.3).encoder
    assert max(m.drop_prob for m in dropping.modules() if hasattr(m, "drop_prob")) == pytest.approx(0.3)
