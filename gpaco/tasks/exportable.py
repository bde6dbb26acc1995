"""A trained model ready to be exported, for both tasks."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from gpaco import __version__
from gpaco.recipes.settings import Recipe

Size = tuple[int, int]  # height, width
READING = (  # what `read_image` does to a file
    "turn the image upright by its EXIF orientation",
    "scale 16-bit values to 8 bits, from the smallest of 255, 4095 and 65535 that holds the largest value",
    "put white behind transparent parts",
    "convert to RGB",
)


class Exportable(NamedTuple):
    """A trained model ready to be exported."""

    module: nn.Module  # images (N, 3, H, W) uint8 -> logits
    weights: Mapping[str, Tensor]  # of its backbone; empty if no other model can use them
    about: dict[str, Any]  # everything needed to use it, stored in the file
    batches: tuple[int, ...]  # batch sizes at which to compare the file with the model


def describe_export(
    recipe: Recipe, card: Any, groups: list[str] | None, size: Size, output: list[str]
) -> dict[str, Any]:
    """Return the part of `Exportable.about` that both tasks share; `output` is the shape of the logits."""
    return {
        "gpaco": __version__,
        "task": recipe.train.task,
        "model": card.model,
        "method": recipe.method.name,
        "classes": list(card.classes),
        "counts": card.counts,
        "groups": groups,
        "input": {"name": "images", "shape": ["N", 3, *size], "dtype": "uint8", "size": list(size)},
        "output": {"name": "logits", "shape": output, "dtype": "float32"},
    }
