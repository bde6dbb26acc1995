"""Backbones by name: images in, one row of features per image out. Ours for small images, and everything timm has.

Pretrained weights come from a local safetensors file; nothing is downloaded unless the weights asked for are "hub".
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.errors import UserError, nearest
from gpaco.models.weights.hub import FILE as HUB_FILE
from gpaco.models.weights.hub import fetch, is_hub
from gpaco.models.weights.matching import faults, is_counter

_SMALL = {"resnet8": 1, "resnet20": 3, "resnet32": 5}  # blocks in each of three stages
SMALL_IMAGES = (*_SMALL, "resnet50_cifar")  # models for images that are taken whole
_CIFAR = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # mean and deviation, of CIFAR-10 and used for both
_BUILDING = (TypeError, ValueError, AssertionError, ArithmeticError, RuntimeError)  # how models refuse a setting


class Backbone(NamedTuple):
    """A backbone and what it wants its images to be like."""

    module: nn.Module  # images (N, 3, size, size) -> features (N, num_features)
    num_features: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int


def build(
    name: str, *, size: int | None = None, drop_path: float = 0.0, pool: str = "", weights: str | Path = ""
) -> Backbone:
    """The backbone called `name`, in training mode, with the mean, deviation and size of its images.

    ResNets of timm start as torchvision's do: timm itself would start the last batch norm of each block at 0.

    Args:
        name: "resnet8", "resnet20" or "resnet32" (CIFAR's, 64 features), "resnet50_cifar" (ResNet-50 with a 3x3 stem
            and no pooling after it), or a name of timm's, with a tag or without. ViTs with the tag "mae" have the mean
            of their patches as features, and a norm after it.
        size: of the images, in pixels; the usual one of the model if not given. Models made for one size, as ViTs are,
            are built for this one, and positions in pretrained weights are resampled by timm.
        drop_path: chance to skip a block in training (stochastic depth), where the model has it.
        pool: "mean": features of a ViT are the mean of its patches, then a norm ("fc_norm"), as in MAE's fine-tuning;
            ResNets do that anyway, without the norm. Empty: the model's own way.
        weights: a safetensors file with timm's names for this model. Its classifier is left out, and so is the decoder
            of a file of MAE's; all else must fit. With mean pooling, weights without an fc_norm, such as MAE's, lose
            their final norm, and fc_norm starts anew. Or "hub": timm's own, downloaded;
            `module.pretrained_cfg["hf_hub_id"]` then says which revision it was.
    """
    if size is not None and size < 1:
        raise UserError(f"images of {size} pixels cannot be", "give --size a number of pixels above 0")
    if is_hub(weights) and (name in _SMALL or name == "resnet50_cifar"):
        raise UserError(
            f"{name} is ours and has no weights on timm's hub",
            "choose a model of timm's (--model resnet18), or give a local file: --weights FILE",
        )
    if name in _SMALL:
        if drop_path:
            raise UserError(f"{name} has no drop path", "leave drop_path at 0, or choose a model of timm's")
        small = SmallResNet(_SMALL[name])
        if weights:
            load_weights(small, weights)
        return Backbone(small, 64, *_CIFAR, size or 32)
    if name == "resnet50_cifar":
        module = _resnet50_cifar(drop_path)
        if weights:
            load_weights(module, weights)
        (mean, std), usual = _CIFAR, 32
    else:
        module = _from_timm(name, size, drop_path, pool, weights)
        config = module.pretrained_cfg
        mean, std, usual = tuple(config["mean"]), tuple(config["std"]), int(config["input_size"][-1])
    return Backbone(module, _width(module, name, size or usual, usual), mean, std, size or usual)


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Fill `module` from a safetensors file, without the classifier that the file may have.

    All else has to match by name and shape. Batch norm's counters of batches may be missing, and may be of shape (1,).
    A decoder, as MAE's files may have one, is left out. An fc_norm may be missing in the file: it then starts anew, and
    the file's final norm, which it replaces, is left out.
    """
    fill(module, read_safetensors(Path(path)), path)


def fill(module: nn.Module, tensors: Mapping[str, Tensor], path: str | Path) -> None:
    """What `load_weights` does, with tensors that are here already; `path` is where they came from."""
    given = dict(tensors)
    given.update({key: value.reshape(()) for key, value in given.items() if is_counter(key) and value.shape == (1,)})
    shapes = {key: tuple(value.shape) for key, value in given.items()}
    if wrong := faults(module, shapes):
        raise UserError(
            f"{path} does not fit the model: {wrong}",
            "choose with --model the architecture that it was saved from, or a file with timm's names for it",
        )
    wanted = module.state_dict()
    module.load_state_dict({key: value for key, value in given.items() if key in wanted}, strict=False)


def misfit(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """What keeps weights with these names and shapes out of the backbone `name`, in words; "" if nothing does."""
    with torch.device("meta"):  # no weights are made
        module = build(name).module
    return faults(module, {key: () if is_counter(key) and shape == (1,) else shape for key, shape in shapes.items()})


class UsualInput(NamedTuple):
    """What images a model was made for."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int


def usual_input(name: str) -> UsualInput:
    """Mean, deviation and size of the images that model `name` was made for; no network is built."""
    from timm.models import get_pretrained_cfg

    if name in SMALL_IMAGES:
        return UsualInput(*_CIFAR, 32)
    config = get_pretrained_cfg(name, allow_unregistered=True)
    if config is None:
        raise UserError(f"timm does not know what images {name} takes", "choose another --model")
    return UsualInput(tuple(config.mean), tuple(config.std), int(config.input_size[-1]))


def usual_size(name: str) -> int:
    """The size of images that timm's model `name` was trained on; 0 for ours, which take any, and for unknown names."""
    from timm.models import get_pretrained_cfg, is_model

    config = get_pretrained_cfg(name, allow_unregistered=True) if is_model(name) and ":" not in name else None
    return 0 if config is None else int(config.input_size[-1])


def origin(module: nn.Module, weights: str) -> str:
    """Where the weights of a built backbone came from, with the revision if that was the hub."""
    return f"hub:{module.pretrained_cfg['hf_hub_id']}" if is_hub(weights) else weights  # type: ignore[index]


class SmallResNet(nn.Module):
    """ResNet for small images (He et al., 2016, section 4.2): 6 n + 2 layers with the classifier, 64 features.

    Three stages of n blocks, 16, 32 and 64 wide. Where the size halves, the shortcut takes every second pixel and fills
    up the channels with zeros (option A). Convolutions start Kaiming normal. Any size works, 8 px and less too.
    """

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(3, 16)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(_Block(16, 16) for _ in range(blocks)))
        self.layer2 = nn.Sequential(*(_Block(32 if i else 16, 32) for i in range(blocks)))
        self.layer3 = nn.Sequential(*(_Block(64 if i else 32, 64) for i in range(blocks)))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)), inplace=True)
        features: Tensor = self.layer3(self.layer2(self.layer1(x))).mean((2, 3))
        return features


class _Block(nn.Module):
    """Two convolutions and a shortcut; a block that gets wider halves the size."""

    def __init__(self, wide_in: int, wide: int) -> None:
        super().__init__()
        self.grown = wide - wide_in
        self.conv1 = _conv3x3(wide_in, wide, stride=2 if self.grown else 1)
        self.bn1 = nn.BatchNorm2d(wide)
        self.conv2 = _conv3x3(wide, wide)
        self.bn2 = nn.BatchNorm2d(wide)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        if self.grown:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.grown // 2, self.grown // 2))
        return F.relu(y + x, inplace=True)


def _conv3x3(wide_in: int, wide: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(wide_in, wide, 3, stride=stride, padding=1, bias=False)


def _resnet50_cifar(drop_path: float) -> Any:
    """ResNet-50 that keeps the size of a small image until its second stage."""
    model = _create("resnet50", drop_path_rate=drop_path, zero_init_last=False)
    model.conv1 = _conv3x3(3, 64)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model


def is_known(name: str) -> bool:
    """Return whether `name` is a model of ours or of timm's, with a tag or without."""
    from timm.models import is_model

    return name in SMALL_IMAGES or (":" not in name and "/" not in name and is_model(name))


def check_known(name: str) -> None:
    """Raise where there is no model of this name. timm takes seconds to import: it is not asked for ours."""
    if name not in SMALL_IMAGES:
        _config(name)


def _config(name: str) -> Any:
    """What timm knows of its model `name`; None where that is nothing."""
    from timm.models import get_pretrained_cfg, list_models

    own = list(SMALL_IMAGES)
    if not is_known(name):
        raise UserError(
            f"there is no model {name!r}{nearest(name, own + list_models())}",
            f"take one of {', '.join(own)}, or a name from timm.list_models()",
        )
    try:
        return get_pretrained_cfg(name)
    except RuntimeError:
        tagged = list_models(f"{name.split('.')[0]}.*", include_tags=True)
        raise UserError(
            f"timm has no {name!r}{nearest(name, tagged)}",
            f"leave out what follows the dot, or take one of {', '.join(tagged[:8])}",
        ) from None


def _from_timm(name: str, size: int | None, drop_path: float, pool: str, weights: str | Path) -> Any:
    from timm.models import is_model_in_modules

    config = _config(name)
    # Models that ignore a setting, or do not know it, should only meet it when it says something.
    options: dict[str, Any] = {"drop_path_rate": drop_path} if drop_path else {}
    if pool == "mean" or (name.startswith("vit_") and name.endswith(".mae")):
        options["global_pool"] = "avg"  # as MAE's authors fine-tune it: the mean of the patches, then a norm
    options |= {"zero_init_last": False} if is_model_in_modules(name.split(".")[0], {"resnet"}) else {}
    resize = {"img_size": size} if size and config is not None and config.fixed_input_size else {}
    if not weights:
        return _create(name, **options, **resize)
    if is_hub(weights):
        source = {"hf_hub_id": fetch(name, str(weights)), "hf_hub_filename": HUB_FILE}
        return _create(name, **options, **resize, pretrained=True, pretrained_cfg_overlay=source)
    tensors = read_safetensors(Path(weights))
    model = _create(name, **options, **resize)
    if resize and faults(model, {key: tuple(value.shape) for key, value in tensors.items()}):
        # Weights for the model's own size: timm knows how each architecture's positions are resampled.
        original = _create(name, **options)
        fill(original, tensors, weights)
        overlay = {"state_dict": original.state_dict()}
        model = _create(name, **options, **resize, pretrained=True, pretrained_cfg_overlay=overlay)
        model.pretrained_cfg["state_dict"] = None
    else:
        fill(model, tensors, weights)
    return model


def _create(name: str, **options: Any) -> Any:
    """`timm.create_model` without a classifier. Without `pretrained` it does not look for weights."""
    from timm import create_model

    try:
        return create_model(name, num_classes=0, **options)
    except _BUILDING as error:
        shown = {key: value for key, value in options.items() if not key.startswith("pretrained")}
        chosen = ", ".join(f"{key}={value}" for key, value in shown.items()) or "its own settings"
        raise UserError(
            f"timm cannot build {name} with {chosen}: {_one_line(error)}",
            "leave these settings out (--size, drop_path, pool), or choose another model",
        ) from error


def _width(module: nn.Module, name: str, size: int, usual: int) -> int:
    """Number of features, from a forward pass that computes shapes only: it also shows whether the size will do."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    shapes = {key: torch.empty_like(value, device="meta") for key, value in tensors.items()}
    module.eval()
    try:
        with torch.no_grad():
            images = torch.empty(2, 3, size, size, device="meta")
            features = torch.func.functional_call(module, shapes, (images,))
    except _BUILDING as error:
        raise UserError(
            f"{name} cannot take images of {size} x {size} pixels: {_one_line(error)}",
            f"choose another size (its usual one is {usual}) or another model",
        ) from error
    finally:
        module.train()
    shape = tuple(features.shape) if isinstance(features, Tensor) else ()
    if len(shape) != 2 or shape[1] == 0:
        raise UserError(
            f"{name} gives no single row of features per image, but a result of shape {shape}",
            "choose a model for classification",
        )
    return int(shape[1])


def read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    with _explained(path):
        return load_file(path)


def check_readable(path: Path) -> None:
    """Raise where there is no safetensors file; no more of it is read than its list of tensors."""
    from safetensors import safe_open

    with _explained(path), safe_open(path, "pt"):
        pass


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    if not path.is_file():
        raise UserError(
            f"there is no file {path}",
            "--weights takes a .safetensors file, or the word hub: without it nothing is downloaded",
        )
    try:
        yield
    except SafetensorError as error:
        raise UserError(
            f"{path} is no safetensors file: {_one_line(error)}",
            "pickled weights (.pth, .pt, .bin) have to go through `gpaco convert FILE --out NAME.safetensors` first",
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
