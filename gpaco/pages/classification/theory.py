"""Gradients at the class centers, and probabilities: at the optimum of the loss, and measured."""

import numpy as np

from gpaco.methods import PARAMETRIC
from gpaco.metrics.optimum import extra_loss_curve, optimal_probabilities
from gpaco.pages.classification.evidence import Evidence
from gpaco.pages.render import Facts

PAPER = {"alpha": 0.05, "memory": 8192, "batch": 128, "views": 2}


def gradients(one: Evidence) -> Facts | None:
    """Return the mean gradient norm at each class center and the slope; None if they were not measured."""
    found = (one.analysis or {}).get("gradients")
    return {key: found[key] for key in ("centers", "slope", "images")} if found else None


def settings_of(one: Evidence) -> tuple[Facts, bool]:
    """Return the settings of the run's contrastive loss and True, or, if it has none, those of the paper and False."""
    found = (one.analysis or {}).get("settings") or {}
    if one.analysis is None and one.metrics["method"] in PARAMETRIC:
        recipe = one.run.recipe
        found = {"alpha": recipe.method.alpha, "memory": recipe.method.memory, "batch": recipe.train.batch_size}
        found["views"] = 2
    return (found, True) if found else (PAPER, False)


def optimum(one: Evidence) -> Facts:
    """Return the probabilities at the optimum of the loss for each class, and the measured ones (or None)."""
    settings, own = settings_of(one)
    shown = np.asarray((one.analysis or {}).get("shown") or one.counts, np.float64)
    asked = optimal_probabilities(shown, **settings)
    mass = (one.analysis or {}).get("mass") or {}
    measured = {key: mass.get(key) or [] for key in ("center", "each")}
    return {
        "settings": settings,
        "own": own,
        "shown": shown.tolist(),
        "asked": {
            key: [None if np.isnan(value) else float(value) for value in getattr(asked, key)]
            for key in ("center", "each", "supcon")
        },
        "measured": measured if own and any(value is not None for row in measured.values() for value in row) else None,
    }


def extra_loss(one: Evidence) -> Facts:
    """Return the extra loss on balanced data against P_sup, and the value that SupCon must reach there."""
    settings, own = settings_of(one)
    num_classes = len(one.counts) if own else 1000
    curve = extra_loss_curve(num_classes, alpha=settings["alpha"] or 0.05, memory=settings["memory"])
    lines = {key: getattr(curve, key).tolist() for key in ("p_sup", "loss", "supcon")}
    return {"classes": num_classes, **lines, "best": curve.best, "least": curve.least}
