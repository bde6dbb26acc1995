"""Why: gradients at the class centers, and the probabilities that the loss asks for beside those that were measured."""

from typing import Any

import numpy as np

from gpaco.metrics.arrays import Floats
from gpaco.metrics.optimum import extra_loss_curve, optimal_probabilities
from gpaco.pages.classification.evidence import Evidence, Facts

PAPER = {"alpha": 0.05, "memory": 8192, "batch": 128, "views": 2}


def gradients(one: Evidence) -> Facts | None:
    """Mean gradient norm of each class at the centers, with the slope; None if not measured."""
    found = (one.analysis or {}).get("gradients")
    if not found:
        return None
    return {key: found[key] for key in ("centers", "slope", "images")}


def settings_of(one: Evidence) -> tuple[Facts, bool]:
    """Alpha, memory, batch and views of the run, and True; those of the paper and False for a run without contrast."""
    found = (one.analysis or {}).get("settings") or {}
    if one.analysis is None and one.metrics["method"] in ("gpaco", "paco"):
        recipe = one.run.recipe
        found = {"alpha": recipe.method.alpha, "memory": recipe.method.memory, "batch": recipe.train.batch_size}
        found["views"] = 2
    return (found, True) if found else (PAPER, False)


def optimum(one: Evidence) -> Facts:
    """For each class what the loss asks for at the settings of the run, and what was measured (None if it was not)."""
    settings, own = settings_of(one)
    shown = np.asarray((one.analysis or {}).get("shown") or one.counts, np.float64)
    asked = optimal_probabilities(shown, **settings)
    mass = (one.analysis or {}).get("mass") or {}
    measured = {key: mass.get(key) for key in ("positives", "center", "each")}
    return {
        "settings": settings,
        "own": own,
        "shown": shown.tolist(),
        "asked": {key: _plain(getattr(asked, key)) for key in ("positives", "center", "each", "supcon")},
        "measured": measured if own and any(map(_some, measured.values())) else None,
    }


def extra_loss(one: Evidence) -> Facts:
    """The extra loss of balanced data over P_sup at the settings of the run, and what SupCon must come down to."""
    settings, own = settings_of(one)
    num_classes = len(one.counts) if own else 1000
    curve = extra_loss_curve(num_classes, alpha=settings["alpha"] or 0.05, memory=settings["memory"])
    return {
        "classes": num_classes,
        "p_sup": curve.p_sup.tolist(),
        "loss": curve.loss.tolist(),
        "supcon": curve.supcon.tolist(),
        "best": curve.best,
        "least": curve.least,
    }


def _plain(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _some(values: Any) -> bool:
    return values is not None and any(value is not None for value in values)
