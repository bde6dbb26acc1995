"""Backbones by name: sizes, shapes, counts of parameters, and weights from local files."""

import json
from pathlib import Path

import pytest
import torch
from helpers.forked import output_of
from helpers.hub import REVISION, serving
from safetensors.torch import save_file
from torch import Tensor, nn

from gpaco.api.load import load
from gpaco.data.readers.read import read
from gpaco.errors import UserError
from gpaco.models.backbones import build, usual_input, usual_size
from gpaco.models.small_resnet import SmallResNet
from gpaco.recipes.request import requested
from gpaco.tasks.classification.card import describe
from gpaco.tasks.classification.defaults import resolve
from gpaco.training.run import Run

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _features(module: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return module.eval()(images)


def _saved(tensors: dict[str, Tensor], path: Path) -> Path:
    save_file({key: value.contiguous() for key, value in tensors.items()}, path)
    return path


def _small_resnet_count(blocks: int) -> int:
    """By hand: 3x3 convolutions, two numbers per channel of batch norm, shortcuts for nothing."""
    widths = [16] * 2 * blocks + [32] * 2 * blocks + [64] * 2 * blocks
    total, before = 3 * 16 * 9 + 2 * 16, 16
    for width in widths:
        total += before * width * 9 + 2 * width
        before = width
    return total


@pytest.mark.parametrize(
    ("name", "blocks", "count"), [("resnet8", 1, 74_640), ("resnet20", 3, 269_072), ("resnet32", 5, 463_504)]
)
def test_small_resnets_have_the_depth_and_the_parameters_of_the_paper(name: str, blocks: int, count: int) -> None:
    backbone = build(name)
    assert _count(backbone.module) == count == _small_resnet_count(blocks)
    convolutions = sum(isinstance(module, nn.Conv2d) for module in backbone.module.modules())
    assert f"resnet{convolutions + 1}" == name  # the classifier is the last layer
    assert backbone.num_features == 64
    assert usual_input(name) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), 32)
    assert backbone.module.training


@pytest.mark.parametrize("name", ["resnet8", "resnet20", "resnet32"])
def test_small_resnets_take_images_of_any_size(name: str) -> None:
    for size in (8, 9, 28, 32):
        backbone = build(name, size=size)
        assert backbone.module(torch.randn(2, 3, size, size)).shape == (2, 64)


def test_shortcuts_take_every_second_pixel_and_fill_up_with_zeros() -> None:
    module = SmallResNet(2)
    for name, parameter in module.named_parameters():
        if "bn2" in name:
            nn.init.zeros_(parameter)  # what is left of each block is its shortcut
    images = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        stem = torch.relu(module.bn1(module.conv1(images)))
        module.bn1.reset_running_stats()
        features = module(images)
    assert torch.equal(features[:, :24], torch.zeros(2, 24))
    assert torch.equal(features[:, 40:], torch.zeros(2, 24))
    torch.testing.assert_close(features[:, 24:40], stem[:, :, ::4, ::4].mean((2, 3)))


def test_convolutions_of_small_resnets_start_kaiming_normal() -> None:
    for module in SmallResNet(5).modules():
        if isinstance(module, nn.Conv2d):
            expected = (2 / (9 * module.in_channels)) ** 0.5
            assert module.weight.std().item() == pytest.approx(expected, rel=0.15)
            assert module.bias is None


def test_resnet50_is_torchvisions_but_for_the_classifier() -> None:
    from torchvision.models import resnet50

    backbone = build("resnet50", size=64)
    assert _count(backbone.module) == 23_508_032
    assert backbone.num_features == 2048
    with torch.device("meta"):
        theirs = resnet50().state_dict()
    ours = backbone.module.state_dict()
    assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items() if not k.startswith("fc.")}


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnext50_32x4d"])
def test_resnets_start_as_torchvisions_do(name: str) -> None:
    """Same constants and same spread in every layer; timm alone would start some batch norms at 0."""
    from torchvision import models

    theirs = dict(getattr(models, name)(weights=None).named_parameters())
    for key, ours in build(name, size=32).module.named_parameters():
        if ours.ndim == 1:
            assert torch.equal(ours, theirs[key]), key
        else:
            assert ours.std().item() == pytest.approx(theirs[key].std().item(), rel=0.1), key
            assert abs(ours.mean().item()) < 0.1 * ours.std().item(), key


def test_resnet50_cifar_keeps_small_images_large_and_starts_as_torchvisions() -> None:
    backbone = build("resnet50_cifar")
    assert _count(backbone.module) == 23_508_032 - 3 * 64 * 49 + 3 * 64 * 9
    assert backbone.num_features == 2048
    shapes = []
    backbone.module.layer1.register_forward_hook(lambda *args: shapes.append(args[2].shape))
    assert _features(backbone.module, torch.randn(2, 3, 8, 8)).shape == (2, 2048)
    assert shapes == [(2, 256, 8, 8)]
    assert all((m.weight == 1).all() for m in backbone.module.modules() if isinstance(m, nn.BatchNorm2d))
    assert backbone.module.conv1.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    ("name", "size", "width", "normal"),
    [
        ("resnet18", 32, 512, IMAGENET),
        ("vit_tiny_patch16_224", 32, 192, ((0.5,) * 3, (0.5,) * 3)),
        ("swin_tiny_patch4_window7_224", 64, 768, IMAGENET),  # its maps are NHWC
        ("tf_efficientnet_lite0", 32, 1280, ((0.5,) * 3, (0.5,) * 3)),
        ("mobilenetv3_small_050.lamb_in1k", 32, 1024, IMAGENET),  # timm's num_features says 288
    ],
)
def test_timm_models_give_one_row_per_image_at_small_sizes(
    name: str, size: int, width: int, normal: tuple[tuple[float, ...], tuple[float, ...]]
) -> None:
    backbone = build(name, size=size)
    assert backbone.num_features == width
    assert usual_input(name)[:2] == normal
    assert _features(backbone.module, torch.randn(2, 3, size, size)).shape == (2, width)


def test_the_usual_size_comes_from_timm() -> None:
    backbone = build("test_vit")
    assert usual_input("test_vit").size == 160
    assert _features(backbone.module, torch.randn(1, 3, 160, 160)).shape == (1, 64)


def test_drop_path_reaches_the_blocks_or_is_refused() -> None:
    rates = [
        module.drop_prob for module in build("test_vit", drop_path=0.3).module.modules() if hasattr(module, "drop_prob")
    ]
    assert max(rates) == pytest.approx(0.3)
    with pytest.raises(UserError, match="resnet32 has no drop path"):
        build("resnet32", drop_path=0.1)
    with pytest.raises(UserError, match=r"timm cannot build vgg11 with drop_path_rate=0.1: .*drop_path_rate"):
        build("vgg11", drop_path=0.1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("reznet32", "no model 'reznet32'; did you mean 'resnet32'"),
        ("vit_tinny_patch16_224", "did you mean 'vit_tiny_patch16_224'"),
        ("resnet18.a1_in1", "timm has no 'resnet18.a1_in1'; did you mean 'resnet18.a1_in1k'"),
        ("hf-hub:timm/resnet18.a1_in1k", "no model 'hf-hub:timm/resnet18.a1_in1k'"),
        ("/models/resnet18", "no model '/models/resnet18'"),
        ("", "no model ''"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_one(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        build(name)
    assert "\n" not in error.value.cause + error.value.remedy


def test_a_size_that_a_model_cannot_take_is_an_error_before_training() -> None:
    for name, size in (("convnext_atto", 30), ("swin_tiny_patch4_window7_224", 4)):
        with pytest.raises(UserError, match=f"{name} .*{size}"):
            build(name, size=size)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_model_without_pooled_features_is_an_error() -> None:
    with pytest.raises(UserError, match="inception_next_atto returns shape"):
        build("inception_next_atto", size=32)


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "test_vit", "test_efficientnet", "test_convnext"])
def test_weights_from_a_file_are_the_models_own_without_the_classifier(name: str, tmp_path: Path) -> None:
    source = build(name, size=None if name == "test_vit" else 32)
    tensors = source.module.state_dict()
    for i, value in enumerate(tensors.values()):
        value.copy_(torch.rand(value.shape) if value.is_floating_point() else torch.tensor(i))
    classifier = {"resnet8": "linear", "resnet18": "fc", "test_vit": "head", "test_efficientnet": "classifier"}
    with_head = {**tensors, f"{classifier.get(name, 'head.fc')}.weight": torch.randn(10, source.num_features)}
    for path in (_saved(tensors, tmp_path / "bare.safetensors"), _saved(with_head, tmp_path / "head.safetensors")):
        loaded = build(name, weights=str(path)).module.state_dict()
        assert loaded.keys() == tensors.keys()
        assert all(torch.equal(value, tensors[key]) for key, value in loaded.items())


def test_weights_of_torchvision_give_torchvisions_features(tmp_path: Path) -> None:
    from torchvision.models import resnet18

    theirs = resnet18(weights=None).eval()
    tensors = {key: value for key, value in theirs.state_dict().items() if "num_batches" not in key}  # old files
    ours = build("resnet18", weights=_saved(tensors, tmp_path / "tv.safetensors")).module
    theirs.fc = nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(_features(ours, images), _features(theirs, images))


def test_counters_of_batches_may_be_rows_of_one_as_in_older_files(tmp_path: Path) -> None:
    tensors = build("resnet8").module.state_dict()
    old = {k: v.reshape(1) + 7 if k.endswith("num_batches_tracked") else v for k, v in tensors.items()}
    module = build("resnet8", weights=_saved(old, tmp_path / "old.safetensors")).module
    assert module.bn1.num_batches_tracked == torch.tensor(7)
    assert torch.equal(module.conv1.weight, tensors["conv1.weight"])


def test_positions_in_weights_are_resampled_to_the_size_that_was_asked_for(tmp_path: Path) -> None:
    source = build("test_vit").module
    path = _saved(source.state_dict(), tmp_path / "vit.safetensors")
    for size, patches in ((160, 100), (64, 16)):
        module = build("test_vit", size=size, weights=path).module
        assert module.pos_embed.shape[1] - source.pos_embed.shape[1] == patches - 100
        assert torch.equal(module.blocks[1].attn.qkv.weight, source.blocks[1].attn.qkv.weight)
        assert torch.equal(module.pos_embed, source.pos_embed) == (size == 160)
        assert not module.pretrained_cfg.get("state_dict")  # no second copy of the weights is kept
    assert module.training


def test_a_vit_with_mean_pooling_gives_the_normalized_mean_of_its_patches() -> None:
    module = build("test_vit", pool="mean").module.eval()
    images = torch.randn(2, 3, 160, 160)
    seen = {}
    module.blocks.register_forward_hook(lambda *args: seen.update(tokens=args[2]))
    nn.init.normal_(module.fc_norm.weight)
    patches = (_features(module, images), seen["tokens"][:, module.num_prefix_tokens :])[1]
    expected = nn.functional.layer_norm(patches.mean(1), (64,), module.fc_norm.weight, module.fc_norm.bias, 1e-6)
    torch.testing.assert_close(_features(module, images), expected)
    assert not any(key.startswith("norm.") for key in module.state_dict())


@pytest.mark.slow
def test_weights_in_maes_layout_fill_a_vit_and_leave_its_new_norm_at_the_start(tmp_path: Path) -> None:
    encoder = build("vit_tiny_patch16_224", size=32).module.state_dict()
    for value in encoder.values():
        value.copy_(torch.randn(value.shape))
    decoder = {"mask_token": torch.ones(1, 1, 8), "decoder_pos_embed": torch.ones(1, 5, 8)}
    decoder |= {f"decoder_{name}.weight": torch.ones(8) for name in ("embed", "norm", "pred", "blocks.0.norm1")}
    assert {"cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.11.mlp.fc2.bias", "norm.weight"} <= set(
        encoder
    )
    encoder["pos_embed"] = torch.randn(1, 197, 192)  # of 224 pixels
    for tensors in (encoder, encoder | decoder):
        path = _saved(tensors, tmp_path / "mae.safetensors")
        for size in (224, 32):
            loaded = build("vit_tiny_patch16_224", size=size, pool="mean", weights=path).module.state_dict()
            assert set(loaded) == set(encoder) - {"norm.weight", "norm.bias"} | {"fc_norm.weight", "fc_norm.bias"}
            assert torch.equal(loaded["fc_norm.weight"], torch.ones(192))
            assert torch.equal(loaded["fc_norm.bias"], torch.zeros(192))
            same = {key for key, value in encoder.items() if key in loaded and torch.equal(loaded[key], value)}
            changed = {"fc_norm.weight", "fc_norm.bias"} | ({"pos_embed"} if size == 32 else set())
            assert same == set(loaded) - changed


def test_weights_that_have_the_new_norm_keep_it_and_another_pooling_does_not_fit_silently(tmp_path: Path) -> None:
    tuned = build("test_vit", pool="mean").module.state_dict()
    tuned["fc_norm.weight"].fill_(3)
    path = _saved(tuned, tmp_path / "tuned.safetensors")
    assert torch.equal(build("test_vit", pool="mean", weights=path).module.fc_norm.weight, torch.full((64,), 3.0))
    with pytest.raises(UserError, match=r"missing in the file: norm.weight, norm.bias; not in the model: fc_norm"):
        build("test_vit", weights=path)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    tensors = dict(build("resnet8").module.state_dict())
    del tensors["layer2.0.conv1.weight"]
    tensors["layer9.weight"] = torch.zeros(1)
    tensors["conv1.weight"] = torch.zeros(16, 3, 7, 7)
    path = _saved(tensors, tmp_path / "wrong.safetensors")
    with pytest.raises(UserError) as error:
        build("resnet8", weights=path)
    assert "missing in the file: layer2.0.conv1.weight;" in error.value.cause
    assert "not in the model: layer9.weight;" in error.value.cause
    assert "of another shape: conv1.weight (16, 3, 7, 7) for (16, 3, 3, 3)" in error.value.cause
    assert "set --model to the architecture" in error.value.remedy

    with pytest.raises(
        UserError, match=r"missing in the file: conv1.weight, .* and \d+ more; not in the model: layer9.weight"
    ):
        build("resnet18", weights=_saved({"layer9.weight": torch.zeros(1)}, tmp_path / "other.safetensors"))


def test_a_file_that_is_missing_or_no_safetensors_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no file .*none\.safetensors\n.*--weights hub"):
        build("resnet18", weights=tmp_path / "none.safetensors")
    pickled = tmp_path / "weights.pth"
    torch.save(build("resnet8").module.state_dict(), pickled)
    with pytest.raises(UserError, match=r"weights\.pth is not a safetensors file"):
        build("resnet8", weights=pickled)
    (tmp_path / "empty.safetensors").touch()
    with pytest.raises(UserError, match=r"empty\.safetensors is not a safetensors file"):
        build("resnet8", weights=tmp_path / "empty.safetensors")


@pytest.mark.slow
def test_pretraining_weights_of_a_masked_autoencoder_fill_a_vit_with_mean_pooling(tmp_path: Path) -> None:
    from timm import create_model

    with torch.device("meta"):
        shapes = create_model("vit_base_patch16_224", num_classes=0).state_dict()  # has the norm before pooling
    pretrained = {name: torch.rand(value.shape) for name, value in shapes.items()}
    built = build("vit_base_patch16_224.mae", weights=_saved(pretrained, tmp_path / "mae.safetensors"))
    assert torch.equal(built.module.blocks[11].mlp.fc2.weight, pretrained["blocks.11.mlp.fc2.weight"])
    assert (built.module.fc_norm.weight == 1).all()  # starts anew
    assert not hasattr(built.module.norm, "weight")
    (tmp_path / "mae.safetensors").unlink()  # 350 MB


def test_with_weights_the_size_mean_and_deviation_are_those_of_timms_config(tmp_path: Path) -> None:
    def resolved(*settings: str) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
        recipe, given = requested("digits", None, settings, {"model": "test_vit", "epochs": 1})
        recipe = resolve(recipe, given, splits, torch.device("cpu"), lambda line: None)
        card = describe(recipe, splits)
        return card.size, card.mean, card.std

    splits = read("digits")
    path = _saved(build("test_vit").module.state_dict(), tmp_path / "vit.safetensors")
    half = (0.5, 0.5, 0.5)
    assert resolved(f"model.weights={path}") == (160, half, half)
    assert resolved(f"model.weights={path}", "model.size=32", "model.mean=[0.1,0.2,0.3]", "model.std=[1,2,3]") == (
        32,
        (0.1, 0.2, 0.3),
        (1, 2, 3),
    )
    assert usual_size("vit_base_patch16_384.augreg_in1k") == 384
    assert usual_size("resnet32") == usual_size("no such model") == 0


def test_the_usual_input_of_a_model_is_known_without_building_it() -> None:
    for name in ("resnet18", "test_vit", "test_efficientnet.r160_in1k", "test_convnext", "gcvit_tiny"):
        config = build(name).module.pretrained_cfg
        assert usual_input(name) == (config["mean"], config["std"], config["input_size"][-1])
    assert usual_input("resnet8") == usual_input("resnet50_cifar")


# The hub

TRAINING = """
import json, sys, urllib.request
from helpers.hub import use
import gpaco
from gpaco.errors import EnvironmentProblem
from gpaco.models.weights.hub import fetch

out, environment, origin = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
use(**environment)
options = {"model": "test_vit", "size": 16, "method": "ce", "train": "head", "epochs": 1, "batch_size": 64}
options |= {"report": False, "say": lambda line: None}
for name, weights in {"scratch": {}, "run": {"weights": "hub"}, "run again": {"weights": "hub"}}.items():
    gpaco.train("digits", out=f"{out}/{name.split()[0]}", **options, **weights)
    urllib.request.urlopen(f"{environment['HF_ENDPOINT']}/after-{name.replace(' ', '-')}").read()
use(HF_HUB_OFFLINE="1")
print(fetch("test_vit"), fetch("test_vit", f"hub:{origin}"))
use(HF_HOME=f"{out}/empty")
try:
    gpaco.train("digits", out=f"{out}/other", **options, weights="hub")
except EnvironmentProblem as error:
    print(error)
"""


@pytest.mark.extensive
@pytest.mark.process
def test_weights_come_from_the_hub_only_when_asked_and_only_once(tmp_path: Path) -> None:
    origin = f"timm/test_vit.r160_in1k@{REVISION}"
    with serving("test_vit", tmp_path / "cache") as hub:
        fetched, *message = output_of(TRAINING, tmp_path, json.dumps(hub.environment), origin).splitlines()
    first, last = hub.asked.index("/after-run"), hub.asked.index("/after-run-again")
    assert hub.asked[0] == "/after-scratch"
    assert any(path.endswith("/model.safetensors") for path in hub.asked[:first])
    assert last == first + 1  # a run that goes on has its weights in its checkpoint
    loaded = load(tmp_path / "run")
    assert loaded.card.weights == f"hub:{origin}"
    assert Run(tmp_path / "run").recipe.model.weights == "hub"
    assert torch.equal(loaded.model.backbone.blocks[1].mlp.fc1.weight, hub.backbone.blocks[1].mlp.fc1.weight)

    # Offline, what is in the cache is used, and everything else is an error.
    assert fetched.split() == [origin, origin]
    assert "cannot download model.safetensors of timm/test_vit.r160_in1k from the hub" in message[0]
    assert "--weights FILE" in message[1]
    assert len(hub.asked) == last + 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet32", "resnet32 is not a timm model and has no published weights"),
        ("gcvit_tiny", "timm has no weights for 'gcvit_tiny' on its hub"),  # pickled, elsewhere
        ("vit_tiny_patch16_244", "no model 'vit_tiny_patch16_244'; did you mean 'vit_tiny_patch16_224'"),
    ],
)
def test_a_model_without_weights_on_the_hub_is_refused_without_asking_there(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(name, weights="hub")
