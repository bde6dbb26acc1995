"""Whether a file of weights fits a model, and which model it was made for where it does not."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn

# Tried where the names give no hint, if the file has a layer that all of these have: a tenth of a second for each.
_USUAL = {
    "layer1.0.conv1.weight": ("resnet8", "resnet20", "resnet32", "resnet18", "resnet34", "resnet50", "resnet101"),
    "blocks.0.attn.qkv.weight": ("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224"),
}

Shapes = Mapping[str, tuple[int, ...]]


def faults(module: nn.Module, given: Shapes) -> str:
    """What in names and shapes keeps tensors from being loaded into `module`, in words; "" if nothing does.

    A file may have a classifier and a decoder (MAE's) beyond the model, and lack batch norm's counters. Where a norm
    follows the pooling ("fc_norm"), it may lack that one, and have the one before it instead.
    """
    wanted = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    spare: list[str] = [*classifiers_of(module)]
    fresh: tuple[str, ...] = ()
    if isinstance(getattr(module, "fc_norm", None), nn.LayerNorm):
        spare, fresh = [*spare, "norm"], ("fc_norm.",)
    dropped = (*(f"{name}." for name in spare), "decoder_", "mask_token")
    wrong = {
        "missing in the file": [k for k in wanted if k not in given and not is_counter(k) and not k.startswith(fresh)],
        "not in the model": [key for key in given if key not in wanted and not key.startswith(dropped)],
        "of another shape": [
            f"{key} {given[key]} for {shape}" for key, shape in wanted.items() if given.get(key, shape) != shape
        ],
    }
    return "; ".join(_first(what, keys) for what, keys in wrong.items() if keys)


def _first(what: str, keys: list[str], few: int = 3) -> str:
    more = f" and {len(keys) - few} more" if len(keys) > few else ""
    return f"{what}: {', '.join(keys[:few])}{more}"


def fitting(given: Shapes, path: Path, asked: nn.Module) -> str:
    """A model that a file of weights fits: looked for among names like the file's or that of `asked`; "" if none."""
    usual = [name for key, names in _USUAL.items() if key in given for name in names]
    for name in [*_alike(path, _config(asked).get("architecture", "")), *usual]:
        with torch.device("meta"):
            module = _build(name)
        if not faults(module, given):
            return name
    return ""


def classifiers_of(module: nn.Module) -> tuple[str, ...]:
    """The names of a model's classifiers in files of its weights."""
    known = _config(module).get("classifier", ("fc", "linear")) or ()
    return (known,) if isinstance(known, str) else tuple(known)


def is_counter(key: str) -> bool:
    """Batch norm's counters of batches may be missing."""
    return key.endswith("num_batches_tracked")


def _config(module: nn.Module) -> dict[str, Any]:
    """What timm knows of a model; nothing about those that are not its own."""
    return dict(getattr(module, "pretrained_cfg", {}))


def _alike(path: Path, asked: str) -> list[str]:
    """Names of timm's models that are written in the path of a file, then some like it or like the one asked for."""
    from timm import list_models

    known = list_models()
    words = re.split(r"[.\-]", path.stem)
    written = [word for word in (*words, path.parent.name.split(".")[0]) if word in set(known)]
    alike = [name for word in (words[0], asked) for name in get_close_matches(word, known, n=4, cutoff=0.75)]
    return list(dict.fromkeys([*written, *alike]))


def _build(name: str) -> nn.Module:
    from timm import create_model, is_model

    from gpaco.backbones import build  # which asks here whether weights fit

    return create_model(name, num_classes=0) if is_model(name) else build(name).module
