"""The card of a segmenter: everything needed to use it again."""

from dataclasses import dataclass

from gpaco import __version__
from gpaco.models.backbones import NONE
from gpaco.models.weights.packaged import PACKAGE, package_of
from gpaco.recipes.settings import Recipe
from gpaco.tasks.segmentation.defaults import usual_size
from gpaco.tasks.segmentation.network import Segmenter, build, normalization, timm_name
from gpaco.tasks.segmentation.scenes import SceneSplits
from gpaco.tasks.segmentation.transforms import fitting


@dataclass(frozen=True)
class Card:
    """Stored with every checkpoint."""

    gpaco: str  # version that wrote it
    classes: tuple[str, ...]
    palette: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]  # training pixels per class
    images: dict[str, str]  # hash of the list of images in each split
    model: str
    weights: str  # where pretrained weights came from
    dim: int
    aux: bool
    channels: int
    output_stride: int
    drop_path: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image_size: tuple[int, ...]  # height and width of a typical image
    base_size: tuple[int, ...]
    window: tuple[int, ...]
    stride: tuple[int, ...]
    many: float
    few: float


def fitted_size(card: Card) -> tuple[int, int]:
    """Return the height and width of a typical image, fitted into the base size."""
    factor = fitting(card.image_size, card.base_size)
    height, width = (max(1, round(side * factor)) for side in card.image_size)
    return height, width


def describe(recipe: Recipe, splits: SceneSplits) -> Card:
    """Return the card of a model that this recipe trains on these splits."""
    settings = recipe.segmentation
    mean, std = normalization(recipe.model.name)
    package = package_of(timm_name(recipe.model.name)) if recipe.model.weights == PACKAGE else None
    return Card(
        gpaco=__version__,
        classes=splits.classes,
        palette=tuple(tuple(color) for color in splits.train.palette),
        counts=splits.pixels,
        images={name: part.list_hash for name, part in splits.parts()},
        model=recipe.model.name,
        weights=package.requirement if package else recipe.model.weights,
        dim=recipe.model.dim if recipe.method.name == "gpaco" else 0,
        aux=settings.aux_weight > 0,
        channels=settings.channels,
        output_stride=settings.output_stride,
        drop_path=recipe.model.drop_path,
        mean=recipe.model.mean or mean,
        std=recipe.model.std or std,
        image_size=tuple(usual_size(splits.train)),
        base_size=settings.base_size,
        window=settings.window,
        stride=settings.stride,
        many=settings.many,
        few=settings.few,
    )


def build_model(card: Card, weights: str = NONE) -> Segmenter:
    """Build the network that a card describes, with pretrained `weights` for its encoder."""
    return build(
        card.model,
        len(card.classes),
        weights=weights,
        dim=card.dim,
        aux=card.aux,
        channels=card.channels,
        output_stride=card.output_stride,
        drop_path=card.drop_path,
    )
