"""Whether a file of weights fits a model, and which model it was made for where it does not."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gpaco.errors import UserError

# Tried where the names give no hint. Building one on the meta device takes about a tenth of a second.
_RESNETS = ("resnet50", "resnet18", "resnet34", "resnet101", "resnet152", "resnet32", "resnet50_cifar")
_VITS = ("vit_base_patch16_224", "vit_small_patch16_224", "vit_tiny_patch16_224", "vit_large_patch16_224")

Tensors = Mapping[str, Tensor]


def faults(given: Tensors, wanted: Tensors, classifiers: Sequence[str]) -> dict[str, list[str]]:
    """What keeps tensors from filling a model, in words: nothing if they fit. Classifiers may be in the file."""
    dropped = tuple(f"{classifier}." for classifier in classifiers)
    wrong = {
        "missing in the file": [key for key in wanted if key not in given and not is_counter(key)],
        "not in the model": [key for key in given if key not in wanted and not key.startswith(dropped)],
        "of another shape": [
            f"{key} {tuple(given[key].shape)} for {tuple(value.shape)}"
            for key, value in wanted.items()
            if key in given and given[key].shape != value.shape
        ],
    }
    return {what: keys for what, keys in wrong.items() if keys}


def fitting(given: Tensors, path: Path, asked: nn.Module) -> str:
    """A model that a file of weights fits: looked for among names like the file's or that of `asked`; "" if none."""
    for name in _candidates(path, _config(asked).get("architecture", "")):
        try:
            with torch.device("meta"):
                module = _build(name)
        except UserError:
            continue
        if not faults(given, module.state_dict(), classifiers_of(module)):
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


def _candidates(path: Path, asked: str) -> list[str]:
    from timm import list_models

    known = list_models()
    words = re.split(r"[.\-]", path.stem)
    written = [word for word in (*words, path.parent.name.split(".")[0]) if word in set(known)]
    alike = [name for word in (words[0], asked) for name in get_close_matches(word, known, n=5, cutoff=0.7)]
    return list(dict.fromkeys([*written, *alike, *_RESNETS, *_VITS]))


def _build(name: str) -> nn.Module:
    from gpaco.backbones import build  # which asks here whether weights fit

    return build(name).module
