"""Every method on a small network, and a small batch for it."""

import torch
from torch import Tensor

from gpaco.methods import WITHOUT_PROJECTOR
from gpaco.methods import build as build_method
from gpaco.methods.method import Method
from gpaco.models.backbones import build
from gpaco.models.classifier import Classifier
from gpaco.recipes.recipe import override
from gpaco.recipes.settings import Recipe

COUNTS = torch.tensor([20.0, 8.0, 4.0])


def make(name: str, *changes: str, counts: Tensor = COUNTS) -> tuple[Classifier, Method]:
    torch.manual_seed(0)
    recipe = override(
        Recipe(),
        [
            f"method.name={name}",
            "method.memory=16",
            "model.dim=8",
            "views.first=plain",
            "views.second=plain",
            *changes,
        ],
    )
    backbone = build("resnet8")
    projector = "none" if name in WITHOUT_PROJECTOR else "gpaco"
    model = Classifier(backbone.module, backbone.num_features, 3, dim=8, projector=projector)
    return model, build_method(recipe, model, 3, counts)


def batch(rows: int = 12, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    images = torch.randn(rows, 3, 8, 8, generator=generator) + labels.view(-1, 1, 1, 1)
    return [images, images + 0.1 * torch.randn(images.shape, generator=generator)], labels
