"""Temperature: one factor on all logits, so that probabilities mean what they say."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpaco.metrics.arrays import Floats, Ints

_RANGE = (np.log(1e-3), np.log(1e3))


def balanced_weights(labels: Ints, num_classes: int) -> Floats:
    """Return a weight for each image such that all classes weigh the same."""
    weights: Floats = 1 / np.bincount(labels, minlength=num_classes)[labels]
    return weights


def cross_entropy(logits: NDArray[np.floating], labels: Ints, weights: Floats) -> float:
    """Return the weighted mean of -log of the probability of the label."""
    scores = np.asarray(logits, np.float64)
    scores = scores - scores.max(1, keepdims=True)
    own = scores[np.arange(len(labels)), labels]
    return float(np.average(np.log(np.exp(scores).sum(1)) - own, weights=weights))


def fit_factor(logits: NDArray[np.floating], labels: Ints, weights: Floats | None = None) -> float:
    """Return the factor (1 / temperature) on the logits with the lowest cross entropy; 1 without images."""
    if not len(labels):
        return 1.0
    from scipy.optimize import minimize_scalar

    each = np.ones(len(labels)) if weights is None else weights
    scores = np.asarray(logits, np.float64)
    found = minimize_scalar(
        lambda log: cross_entropy(scores * np.exp(log), labels, each),
        bounds=_RANGE,
        method="bounded",
        options={"xatol": 1e-3},
    )
    return float(np.exp(found.x))


def fit_factors(parts: Sequence[NDArray[np.floating]], labels: Ints, weights: Floats) -> list[float]:
    """Return a factor for each of several logits: each is calibrated alone, then their sum."""
    factors = [fit_factor(part, labels, weights) for part in parts]
    summed = sum(np.asarray(part, np.float64) * factor for part, factor in zip(parts, factors, strict=True))
    common = fit_factor(np.asarray(summed), labels, weights)
    return [factor * common for factor in factors]
