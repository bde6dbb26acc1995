"""A backbone as a chain of modules that run one after another, to be cut where branches begin."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from gpaco.errors import UserError

_POOLS = ("global_pool", "pool", "head")


def links(backbone: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """Return the modules in order, by name; those inside an `nn.Sequential` one by one, with a dot in their name."""
    found = []
    for name, child in backbone.named_children():
        found += links(child, f"{prefix}{name}.") if type(child) is nn.Sequential else [(f"{prefix}{name}", child)]
    return found


def run(modules: Iterable[nn.Module], x: Tensor) -> Tensor:
    for module in modules:
        x = module(x)
    return x


@torch.no_grad()
def check_chain(backbone: nn.Module, name: str, size: int) -> None:
    """Raise an error if the backbone is not its modules one after another, with a pooling of its maps at the end."""
    training = backbone.training
    backbone.eval()
    images = torch.rand(2, 3, size, size)
    try:
        same = torch.allclose(backbone(images), run([one for _, one in links(backbone)], images))
        same = same and maps(backbone, images).dim() == 4
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        same = False
    backbone.train(training)
    if not same:
        raise UserError(
            f"{name} cannot be divided into branches", "choose a ResNet or an EfficientNet: --model resnet18"
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
    """Return the place of the last block in the chain; a few layers may follow it."""
    return max(place for place, (name, _) in enumerate(links(backbone)) if "." in name)


def last_stages(backbone: nn.Module) -> int:
    """Return the place where the last two stages of blocks begin."""
    stages = [name.rpartition(".")[0] for name, _ in links(backbone)]
    last = list(dict.fromkeys(filter(None, stages)))[-2:]
    return stages.index(last[0])
