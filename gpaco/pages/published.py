"""The number of a run by a recipe beside that of the paper."""

from typing import Any

from gpaco.pages.render import Facts
from gpaco.recipes.recipe import diff, in_toml, load, names
from gpaco.training.run import Run

# Where a run may differ from its recipe without being another experiment: places, hardware, output.
_FREE = {"data.path", "data.root", "model.weights", "train.seed", "train.workers", "train.features", "train.report"}
_FREE |= {"train.checkpoint_every", "train.keep", "train.timeout", "train.channels_last", "train.compile"}
_OPEN: tuple[Any, ...] = ("auto", (), 0, -1)  # values that a recipe leaves to the data


def published(run: Run, ours: float | None, low: float | None = None, high: float | None = None) -> Facts | None:
    """Return the row of the paper, its number and ours (shares), and what was changed; None if there is no row."""
    recipe, source = run.recipe, run.recipe.source
    if not source.paper or ours is None or recipe.name.removesuffix("-paper") not in names():
        return None
    changes = {
        key: theirs
        for key, (packaged, theirs) in diff(load(recipe.name), recipe).items()
        if not key.startswith("source.") and key not in _FREE and packaged not in _OPEN
    }
    theirs = float(source.paper) / 100
    return {
        "recipe": recipe.name,
        "row": f"{source.table}, {source.row}",
        "paper": theirs,
        "ours": ours,
        "low": low,
        "high": high,
        "inside": None if low is None or high is None else low <= theirs <= high,
        "changes": [f"{key} = {in_toml(value)}" for key, value in changes.items()],
    }
