"""A trained model ready to be exported, whatever the task."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from gpaco import __version__
from gpaco.recipes.settings import Recipe

Size = tuple[int, int]  # height, width
READING = (  # what `read_image` does to a file
    "turn it upright by its EXIF orientation",
    "scale values of 16 bits to 8: 0 to 255, 4095 or 65535, the first that holds the largest, becomes 0 to 255",
    "put white behind transparent parts",
    "make it RGB",
)


class Exportable(NamedTuple):
    """A trained model ready to be exported."""

    module: nn.Module  # images (N, 3, H, W) uint8 -> logits
    weights: Mapping[str, Tensor]  # of its backbone
    about: dict[str, Any]  # what one has to know to use it, stored in the file
    batches: tuple[int, ...]  # batch sizes to compare the file with the model at


def describe_export(
    recipe: Recipe, card: Any, groups: list[str] | None, size: Size, output: list[str]
) -> dict[str, Any]:
    """The part of `Exportable.about` that both tasks have; `output` is the shape of the logits."""
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
