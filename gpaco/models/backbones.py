"""Backbones by name: images in, one row of features per image out. Our own for small images, and all of timm.

Pretrained weights come from an installed package or a local safetensors file. Nothing is downloaded unless the weights
are "hub".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gpaco.errors import UserError, nearest
from gpaco.models.small_resnet import SmallResNet, conv3x3
from gpaco.models.weights.files import read_safetensors
from gpaco.models.weights.hub import FILE as HUB_FILE
from gpaco.models.weights.hub import fetch, is_hub
from gpaco.models.weights.matching import faults
from gpaco.models.weights.packaged import PACKAGE, package_of, read_packaged
from gpaco.system.words import one_line

_SMALL = {"resnet8": 1, "resnet20": 3, "resnet32": 5}  # blocks in each of three stages
SMALL_IMAGES = (*_SMALL, "resnet50_cifar")  # our models, for images that are used whole, without cropping
_NARROW = {"channels": (64, 128, 192, 384)}
NONE = "none"  # value of model.weights in a recipe: random weights
_BUILDING = (TypeError, ValueError, AssertionError, ArithmeticError, RuntimeError)  # how models reject a setting


class UsualInput(NamedTuple):
    """The images that a model was designed for."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int


_CIFAR = UsualInput((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), 32)  # of CIFAR-10, also used for CIFAR-100


class Backbone(NamedTuple):
    """A network without a classifier, and its width."""

    module: nn.Module  # images (N, 3, size, size) -> features (N, num_features)
    num_features: int


def build(
    name: str,
    *,
    size: int | None = None,
    drop_path: float = 0.0,
    pool: str = "",
    weights: str | Path = NONE,
    narrow: bool = False,
) -> Backbone:
    """Return the backbone `name`, in training mode.

    timm's ResNets are initialized like torchvision's: timm would start the last batch norm of each block at 0.

    Args:
        name: "resnet8", "resnet20" or "resnet32" (for CIFAR, 64 features), "resnet50_cifar" (ResNet-50 with a 3x3 stem
            and no max pooling), or a timm name, with or without a tag. The features of ViTs with the tag "mae" are the
            mean of their patches, followed by a norm.
        size: image size in pixels; by default the model's usual size. Models with a fixed size, such as ViTs, are built
            for this one, and timm resamples the position embeddings of pretrained weights.
        drop_path: probability of skipping a block in training (stochastic depth), for models that support it.
        pool: "mean": the features of a ViT are the mean of its patches, followed by a norm ("fc_norm"), as in MAE's
            fine-tuning; ResNets always take the mean, without the norm. Empty: the model's default.
        weights: a safetensors file with timm's tensor names for this model. Its classifier is ignored, and so is the
            decoder of a MAE file; everything else must fit. With mean pooling, weights without an fc_norm, such as
            MAE's, lose their final norm, and fc_norm starts from scratch. Or "hub": timm's own weights, downloaded;
            `module.pretrained_cfg["hf_hub_id"]` then names the revision. Or "package": those of an installed package.
            "none": random weights.
        narrow: use three quarters of the channels in the last two stages of a ResNet, as in the experts of RIDE.
    """
    if name in SMALL_IMAGES:
        module: nn.Module = _ours(name, drop_path, weights, narrow)
    else:
        module = _from_timm(name, size, drop_path, pool, weights, narrow)
    usual = usual_input(name).size
    width = module.num_features if isinstance(module, SmallResNet) else _width(module, name, size or usual, usual)
    return Backbone(module, width)


def _ours(name: str, drop_path: float, weights: str | Path, narrow: bool) -> nn.Module:
    if is_hub(weights) or weights == PACKAGE:
        raise UserError(
            f"{name} is not a timm model and has no published weights",
            "choose a timm model (--model resnet18), pass a local file (--weights FILE), or --weights none",
        )
    if name in _SMALL and drop_path:
        raise UserError(f"{name} has no drop path", "leave drop_path at 0, or choose a timm model")
    module = SmallResNet(_SMALL[name], narrow=narrow) if name in _SMALL else _resnet50_cifar(drop_path, narrow)
    if weights != NONE:
        fill(module, read_safetensors(Path(weights)), weights)
    return module


def fill(module: nn.Module, tensors: Mapping[str, Tensor], path: str | Path) -> None:
    """Load the tensors of a weight file into `module`, without a classifier in the file.

    Everything else must fit, as `faults` checks; a batch-norm counter may also have shape (1,).
    """
    if wrong := faults(module, {key: tuple(value.shape) for key, value in tensors.items()}):
        raise UserError(
            f"{path} does not fit the model: {wrong}",
            "set --model to the architecture it was saved from, or use a file with timm's tensor names",
        )
    wanted = module.state_dict()
    given = {key: value.reshape(wanted[key].shape) for key, value in tensors.items() if key in wanted}
    module.load_state_dict(given, strict=False)


def misfit(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return why weights with these names and shapes do not fit the backbone `name`; "" if they do."""
    with torch.device("meta"):  # allocates no weights
        module = build(name).module
    return faults(module, shapes)


def usual_input(name: str) -> UsualInput:
    """Return the mean, standard deviation and size of the images that a model was designed for, without building it."""
    if name in SMALL_IMAGES:
        return _CIFAR
    from timm.models import PretrainedCfg

    config = _config(name) or PretrainedCfg()  # timm's own fallback
    return UsualInput(tuple(config.mean), tuple(config.std), int(config.input_size[-1]))


def usual_size(name: str) -> int:
    """Return the image size of timm's model `name`; 0 for our own, which take any size, and for unknown names."""
    return usual_input(name).size if name not in SMALL_IMAGES and is_known(name) else 0


def origin(name: str, module: nn.Module, weights: str) -> str:
    """Return where the weights of a backbone came from, with the revision if that was the hub."""
    if is_hub(weights):
        return f"hub:{module.pretrained_cfg['hf_hub_id']}"  # type: ignore[index]
    package = package_of(name) if weights == PACKAGE else None
    return package.requirement if package else weights


def _resnet50_cifar(drop_path: float, narrow: bool) -> Any:
    """Return a ResNet-50 that keeps the size of a small image until its second stage."""
    model = _create("resnet50", drop_path_rate=drop_path, zero_init_last=False, **(_NARROW if narrow else {}))
    model.conv1 = conv3x3(3, 64)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model


def is_known(name: str) -> bool:
    """Return whether `name` is one of our models or one of timm's, with or without a tag."""
    from timm.models import is_model

    return name in SMALL_IMAGES or (":" not in name and "/" not in name and is_model(name))


def check_name(name: str) -> None:
    """Raise an error for an unknown model. For our own models, this does not import timm, which takes seconds."""
    if name not in SMALL_IMAGES:
        _config(name)


def _config(name: str) -> Any:
    """Return the pretrained configuration of timm's model `name`, or None."""
    from timm.models import get_pretrained_cfg, list_models

    own = list(SMALL_IMAGES)
    if not is_known(name):
        raise UserError(
            f"there is no model {name!r}{nearest(name, own + list_models())}",
            f"use one of {', '.join(own)}, or a name from timm.list_models()",
        )
    try:
        return get_pretrained_cfg(name)
    except RuntimeError:
        tagged = list_models(f"{name.split('.')[0]}.*", include_tags=True)
        raise UserError(
            f"timm has no {name!r}{nearest(name, tagged)}",
            f"drop the tag after the dot, or use one of {', '.join(tagged[:8])}",
        ) from None


def can_be_narrow(name: str) -> bool:
    """Return whether the last stages can have fewer channels: ResNets and ResNeXts."""
    from timm.models import is_model_in_modules

    return name in SMALL_IMAGES or is_model_in_modules(name.split(".")[0], {"resnet"})


def _from_timm(name: str, size: int | None, drop_path: float, pool: str, weights: str | Path, narrow: bool) -> Any:
    from timm.models import is_model_in_modules

    config = _config(name)
    # Not every model supports every option: pass only those that are set.
    options: dict[str, Any] = ({"drop_path_rate": drop_path} if drop_path else {}) | (_NARROW if narrow else {})
    if pool == "mean" or (name.startswith("vit_") and name.endswith(".mae")):
        options["global_pool"] = "avg"  # as in MAE's fine-tuning: the mean of the patches, then a norm
    options |= {"zero_init_last": False} if is_model_in_modules(name.split(".")[0], {"resnet"}) else {}
    resize = {"img_size": size} if size and config is not None and config.fixed_input_size else {}
    if weights == NONE:
        return _create(name, **options, **resize)
    if is_hub(weights):
        source = {"hf_hub_id": fetch(name, str(weights)), "hf_hub_filename": HUB_FILE}
        return _create(name, **options, **resize, pretrained=True, pretrained_cfg_overlay=source)
    model = _create(name, **options, **resize)
    tensors = read_packaged(name, model) if weights == PACKAGE else read_safetensors(Path(weights))
    if resize and faults(model, {key: tuple(value.shape) for key, value in tensors.items()}):
        # The weights are for the model's usual size: timm can resample the position embeddings of each architecture.
        original = _create(name, **options)
        fill(original, tensors, weights)
        overlay = {"state_dict": original.state_dict()}
        model = _create(name, **options, **resize, pretrained=True, pretrained_cfg_overlay=overlay)
        model.pretrained_cfg["state_dict"] = None
    else:
        fill(model, tensors, weights)
    return model


def _create(name: str, **options: Any) -> Any:
    """Call `timm.create_model` without a classifier. Without `pretrained`, it loads no weights."""
    from timm import create_model

    try:
        return create_model(name, num_classes=0, **options)
    except _BUILDING as error:
        shown = {key: value for key, value in options.items() if not key.startswith("pretrained")}
        chosen = ", ".join(f"{key}={value}" for key, value in shown.items()) or "its default settings"
        raise UserError(
            f"timm cannot build {name} with {chosen}: {one_line(error)}",
            "remove these settings (--size, drop_path, pool), or choose another model",
        ) from error


def _width(module: nn.Module, name: str, size: int, usual: int) -> int:
    """Return the number of features, from a forward pass of shapes only, which also checks the image size."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    shapes = {key: torch.empty_like(value, device="meta") for key, value in tensors.items()}
    module.eval()
    try:
        with torch.no_grad():
            images = torch.empty(2, 3, size, size, device="meta")
            features = torch.func.functional_call(module, shapes, (images,))
    except _BUILDING as error:
        raise UserError(
            f"{name} cannot take images of {size} x {size} pixels: {one_line(error)}",
            f"choose another size (the usual one is {usual}) or another model",
        ) from error
    finally:
        module.train()
    shape = tuple(features.shape) if isinstance(features, Tensor) else ()
    if len(shape) != 2 or shape[1] == 0:
        raise UserError(
            f"{name} returns shape {shape} instead of one row of features per image", "choose a classification model"
        )
    return int(shape[1])
