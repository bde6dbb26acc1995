"""Temperature scaling: one factor on all logits, so that probabilities are calibrated."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpaco.metrics.arrays import Floats, Ints

_RANGE = (np.log(1e-3), np.log(1e3))
_BLOCK = 1024  # images whose logits are converted to double precision at a time


def balanced_weights(labels: Ints, num_classes: int) -> Floats:
    """Return a weight for each image, such that all classes have the same total weight."""
    weights: Floats = 1 / np.bincount(labels, minlength=num_classes)[labels]
    return weights


def cross_entropy(logits: NDArray[np.floating], labels: Ints, weights: Floats) -> float:
    """Return the weighted mean of -log p(label)."""
    scores = _from_highest(logits)
    own = scores[np.arange(len(labels)), labels]
    return float(np.average(np.log(np.exp(scores).sum(1)) - own, weights=weights))


def fit_factor(
    logits: NDArray[np.floating], labels: Ints, weights: Floats | None = None, wrong: float | None = None
) -> float:
    """Return the factor (1 / temperature) on the logits with the lowest cross entropy; 1 without images.

    As in Platt scaling, the target of an image is not only its label, or the factor for images that are all classified
    correctly would be infinite: a small share goes to the most likely of the other classes. For n images it is
    1 / (n + 2), by the rule of succession; n is Kish's effective number if they have weights. In total, that is about
    one wrong image.

    Args:
        wrong: that share, if these images cannot tell since the classifier was trained on them.
    """
    if not len(labels):
        return 1.0
    from scipy.optimize import minimize_scalar

    each = np.ones(len(labels)) if weights is None else weights
    share = 1 / (each.sum() ** 2 / (each**2).sum() + 2) if wrong is None else wrong
    wanted = np.empty(len(labels))  # mean of the logits over the target, relative to the highest logit
    blocks = [slice(k, k + _BLOCK) for k in range(0, len(labels), _BLOCK)]
    for rows in blocks:
        scores = _from_highest(logits[rows])
        at = np.arange(len(scores)), labels[rows]
        wanted[rows] = (1 - share) * scores[at]
        scores[at] = -np.inf
        wanted[rows] += share * scores.max(1)

    def loss(log: float) -> float:
        factor = np.exp(log)
        sums = [np.log(np.exp(factor * _from_highest(logits[rows])).sum(1)) for rows in blocks]
        return float(np.average(np.concatenate(sums) - factor * wanted, weights=each))

    found = minimize_scalar(loss, bounds=_RANGE, method="bounded", options={"xatol": 1e-3})
    return float(np.exp(found.x))


def _from_highest(logits: NDArray[np.floating]) -> Floats:
    scores = np.asarray(logits, np.float64)
    lowered: Floats = scores - scores.max(1, keepdims=True)
    return lowered


def fit_factors(
    parts: Sequence[NDArray[np.floating]], labels: Ints, weights: Floats, wrong: float | None = None
) -> list[float]:
    """Return a factor for each of several sets of logits: each is calibrated alone, then their sum."""
    factors = [fit_factor(part, labels, weights, wrong) for part in parts]
    if len(parts) == 1:
        return factors
    summed = sum(part * np.float32(factor) for part, factor in zip(parts, factors, strict=True))
    common = fit_factor(np.asarray(summed), labels, weights, wrong)
    return [factor * common for factor in factors]
