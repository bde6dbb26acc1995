"""Compares the result of a recipe with the number in the paper."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from gpaco.models.backbones import NONE
from gpaco.models.weights.hub import is_hub
from gpaco.models.weights.packaged import PACKAGE
from gpaco.pages.render import Facts
from gpaco.recipes.paper_rows import names
from gpaco.recipes.recipe import diff, in_toml, load, stages
from gpaco.recipes.settings import Recipe
from gpaco.training.run import Run
from gpaco.training.stages import WITHOUT_EFFECT

# Settings that may differ from the recipe without changing the experiment: paths, hardware, output.
_FREE = {*WITHOUT_EFFECT, "data.path", "data.root", "train.seed", "train.compile"}
# Settings that a recipe leaves to the data, with their unset values; they are filled in before training.
_OPEN: dict[str, Any] = {"model.name": "auto", "model.size": 0, "model.mean": (), "model.std": ()}
_OPEN |= {"views.first": "auto", "views.second": "auto", "segmentation.crop": (), "segmentation.base_size": ()}


def paper_number(run: Run, ours: float | None, low: float | None = None, high: float | None = None) -> Facts | None:
    """Return the row of the paper, its number and ours (as fractions), and what was changed; None without a row."""
    recipe, source = run.recipe, run.recipe.source
    if not source.paper or ours is None or recipe.name.removesuffix("-paper") not in names():
        return None
    theirs = float(source.paper) / 100
    return {
        "recipe": recipe.name,
        "row": f"{source.table}, {source.row}",
        "paper": theirs,
        "ours": ours,
        "low": low,
        "high": high,
        "inside": None if low is None or high is None else low <= theirs <= high,
        "changes": list(_changes(load(recipe.name), recipe)),
    }


def _changes(packaged: Recipe, recipe: Recipe) -> Iterator[str]:
    """Yield the differences in each stage, as text."""
    for theirs, ours in zip_longest(stages(packaged), stages(recipe)):
        if theirs is None or ours is None:
            yield f"{len(recipe.stage)} stages instead of {len(packaged.stage)}"
            return
        where = f"stage.{ours.name}." if recipe.stage else ""
        for key, (one, other) in diff(theirs, ours).items():
            if not key.startswith("source.") and not _is_free(key, one, other):
                yield f"{where}{key} = {in_toml(other)}"


def _is_free(key: str, packaged: Any, value: Any) -> bool:
    if key == "model.weights":  # the file may have another name
        return all(weights not in ("auto", NONE, PACKAGE) and not is_hub(weights) for weights in (packaged, value))
    return key in _FREE or (key in _OPEN and packaged == _OPEN[key])
