"""A backbone as a chain of modules that run one after another, to be split where branches begin."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from gpaco.errors import UserError

_POOLS = ("global_pool", "pool", "head")


def links(backbone: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """Return the modules in order, with their names; those inside an `nn.Sequential` are listed as "outer.inner"."""
    found = []
    for name, child in backbone.named_children():
        found += links(child, f"{prefix}{name}.") if type(child) is nn.Sequential else [(f"{prefix}{name}", child)]
    return found


def run(modules: Iterable[nn.Module], x: Tensor) -> Tensor:
    for module in modules:
        x = module(x)
    return x


@torch.no_grad()
def check_chain(backbone: nn.Module, name: str, size: int, body: str) -> None:
    """Raise an error if the backbone is not a plain chain of its modules, or cannot be split as a body needs.

    "residual" and "attentive" need feature maps whose mean is the features, "bilateral" needs blocks, and "experts"
    need stages of blocks before the last two, which they share.
    """
    training = backbone.training
    backbone.eval()
    images, modules = torch.rand(2, 3, size, size), links(backbone)
    try:
        features = backbone(images)
        fits = torch.allclose(features, run([one for _, one in modules], images))
        if body in ("residual", "attentive"):
            fits &= maps(backbone, images).shape[:2] == features.shape
        elif body == "bilateral":
            fits &= last_block(backbone) > 0
        else:
            fits &= any("." in before for before, _ in modules[: last_stages(backbone)])
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
        fits = False
    backbone.train(training)
    if not fits:
        raise UserError(
            f"{name} cannot be divided into branches",
            "choose a ResNet, a ResNeXt, an EfficientNet or a MobileNetV2: --model resnet18",
        )


def before_pool(backbone: nn.Module) -> list[nn.Module]:
    """Return the modules up to the pooling of the maps."""
    names = [name.partition(".")[0] for name, _ in links(backbone)]
    end = next((place for place, name in enumerate(names) if name in _POOLS), len(names))
    return [module for _, module in links(backbone)[:end]]


def maps(backbone: nn.Module, images: Tensor) -> Tensor:
    """Return the last maps, (N, channels, height, width)."""
    return run(before_pool(backbone), images)


def last_block(backbone: nn.Module) -> int:
    """Return the position of the last block in the chain; a few layers may follow it."""
    return max(place for place, (name, _) in enumerate(links(backbone)) if "." in name)


def last_stages(backbone: nn.Module) -> int:
    """Return the position where the last two stages of blocks begin."""
    stages = [name.rpartition(".")[0] for name, _ in links(backbone)]
    last = list(dict.fromkeys(filter(None, stages)))[-2:]
    return stages.index(last[0])
