"""Every method on a small network, and a small batch for it."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from gpaco import methods
from gpaco.methods.method import Method
from gpaco.models.backbones import build
from gpaco.models.classifier import Classifier
from gpaco.models.networks import build_network
from gpaco.recipes.recipe import override
from gpaco.recipes.settings import Recipe, used

COUNTS = torch.tensor([20.0, 8.0, 4.0])
TRAINED = tuple(name for name in methods.METHODS if name not in methods.UNTRAINED)


def of_method(name: str, changes: Iterable[str]) -> list[str]:
    """Return the changes that apply to a method."""
    keys = {f"method.{key}" for key in used(name)}
    return [one for one in changes if one.partition("=")[0] in keys or not one.startswith("method.")]


def make(
    name: str, *changes: str, counts: Tensor = COUNTS, train_counts: Tensor | None = None
) -> tuple[Classifier, Method]:
    """Return a method with the changes that apply to it, and its network."""
    torch.manual_seed(0)
    usual = ["method.memory=16", "model.dim=8", "views.first=plain", "views.second=plain"]
    own = of_method(name, [*usual, *changes])
    recipe = override(Recipe(), [f"method.name={name}", "model.name=resnet8", "model.weights=none", *own])
    recipe = replace(recipe, model=replace(recipe.model, size=8))
    network = methods.network(recipe)
    backbone, *others = (build("resnet8", narrow=network.narrow) for _ in range(network.number))
    model = build_network(
        network,
        backbone.module,
        backbone.num_features,
        3,
        others=[other.module for other in others],
        size=8,
        small=True,
        dim=8,
        projector=methods.projector(recipe),
    )
    return model, methods.build(recipe, model, 3, counts, train_counts)


def batch(rows: int = 12, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    images = torch.randn(rows, 3, 8, 8, generator=generator) + labels.view(-1, 1, 1, 1)
    return [images, images + 0.1 * torch.randn(images.shape, generator=generator)], labels
