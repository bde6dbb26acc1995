"""The analysis of the paper as numbers: what the loss drives a model toward, and what a trained model does.

Formulas, for any numbers: `optimal_probabilities` (remarks 1 and 2), `extra_loss_curve` (Fig. 3 b), `log_log_slope`.
Measured on a run: `class_gradient_norms` (Fig. 2), `measured_mass`, and `analyze`, which returns both, ready for JSON.
"""

from typing import TYPE_CHECKING, Any

from gpaco.metrics.optimum import ExtraLoss, Optimum, extra_loss_curve, log_log_slope, optimal_probabilities

if TYPE_CHECKING:
    from gpaco.tasks.classification.analysis import GradientNorms, Mass, analyze, class_gradient_norms, measured_mass

__all__ = [
    "ExtraLoss",
    "GradientNorms",
    "Mass",
    "Optimum",
    "analyze",
    "class_gradient_norms",
    "extra_loss_curve",
    "log_log_slope",
    "measured_mass",
    "optimal_probabilities",
]


def __getattr__(name: str) -> Any:
    """Import torch for measurements only; the formulas do not need it."""
    if name not in __all__:
        raise AttributeError(f"module 'gpaco.analysis' has no attribute {name!r}")
    from gpaco.tasks.classification import analysis

    return getattr(analysis, name)
