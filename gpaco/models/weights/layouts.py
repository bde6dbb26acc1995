"""Finds the layout of a checkpoint from the names of its tensors: backbone, projector, class centers, others.

It supports plain weights (a backbone, with or without its classifier, with timm's or torchvision's names) and the
checkpoints of the released PaCo and GPaCo code:

    encoder_q.* (a ResNet, its fc the projector), linear.*, queue*; PaCo also has encoder_k.* and linear_k.*
    a ViT with fc_norm.*, head.*, mlp.* (the projector) and queue*
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Shapes = Mapping[str, tuple[int, ...]]
Renamed = dict[str, str]  # our name of a tensor: its name in the file


@dataclass(frozen=True)
class Layout:
    """The contents of a file."""

    title: str  # for messages
    model: str  # timm's name of the network according to the file; "" if unknown
    backbone: Renamed  # its tensors by timm's names
    run: Renamed  # class centers and projector by our names; empty for plain weights
    projector: str  # "gpaco", "paco", "mae" or "none"
    method: str  # training method; "" for plain weights
    dropped: list[str]  # names in the file that are not used


def layout_of(shapes: Shapes, arch: str = "") -> Layout:
    """Return the layout of the tensors of a file; `arch` is the name of the network in the file, if any."""
    prefix = "module." if all(name.startswith("module.") for name in shapes) else ""
    names = {name.removeprefix(prefix): name for name in shapes}
    run: Renamed = {}
    projector, method = "none", ""
    if {"linear.weight", "encoder_q.conv1.weight"} <= names.keys():
        backbone = {key: old for key, old in below("encoder_q.", names).items() if not key.startswith("fc.")}
        run = below("linear.", names, "centers.")
        found = below("encoder_q.fc.", names, "projector.")
        projector = "gpaco" if "projector.4.weight" in found else "paco" if "projector.3.weight" in found else "none"
        run |= found if projector != "none" else {}
        method = "paco" if below("encoder_k.", names) else "gpaco"
        title = f"a checkpoint of the released {'PaCo' if method == 'paco' else 'GPaCo'} code"
    elif {"patch_embed.proj.weight", "mlp.0.weight", "head.weight"} <= names.keys():
        backbone = {name: old for name, old in names.items() if not name.startswith(("head.", "mlp.", "queue"))}
        run = below("head.", names, "centers.") | below("mlp.", names, "projector.")
        projector, method, title = "mae", "gpaco", "a checkpoint of the released GPaCo code for ViTs"
        arch = f"{arch}_224.mae" if re.fullmatch(r"vit_[a-z]+_patch\d+", arch) else arch  # MAE's names
    else:
        # The decoder and mask token of a masked autoencoder are not needed.
        backbone = {name: old for name, old in names.items() if not re.match(r"decoder_|mask_token$", name)}
        title = "weights"
    backbone = {resnet_name(name): old for name, old in backbone.items()}
    if arch == "resnet50" and shapes.get(backbone.get("conv1.weight", ""), ())[2:] == (3, 3):
        arch = "resnet50_cifar"  # the released code for CIFAR uses the same name for both
    used = {*backbone.values(), *run.values()}
    dropped = [old for old in names.values() if old not in used]
    return Layout(title, arch, backbone, run, projector, method, dropped)


def below(prefix: str, names: Renamed, new: str = "") -> Renamed:
    """Return the names that start with a prefix, with the prefix replaced.

    >>> below("a.", {"a.b": "a.b", "c": "c"}, "d.")
    {'d.b': 'a.b'}
    """
    return {new + name.removeprefix(prefix): old for name, old in names.items() if name.startswith(prefix)}


def groups(names: Iterable[str]) -> str:
    """Summarize names: each first part, with the number of names that share it.

    >>> groups(["module.queue", "encoder_k.a.b", "encoder_k.c", "queue_l"])
    'queue, encoder_k (2), queue_l'
    """
    counts: dict[str, int] = {}
    for name in names:
        first = name.removeprefix("module.").split(".")[0]
        counts[first] = counts.get(first, 0) + 1
    return ", ".join(name if count == 1 else f"{name} ({count})" for name, count in counts.items())


def resnet_name(name: str) -> str:
    """Return timm's name of a tensor of the released ResNet-50 for small images.

    >>> resnet_name("layer2.0.shortcut.1.bias")
    'layer2.0.downsample.1.bias'
    """
    return re.sub(r"^(layer\d\.\d+)\.shortcut\.", r"\1.downsample.", name)
