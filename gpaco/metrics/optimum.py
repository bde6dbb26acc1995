"""Formulas for the optimum of the losses: the paper's remarks 1 and 2, its extra loss and its adaptive weighting."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpaco.errors import UserError
from gpaco.metrics.arrays import Floats


@dataclass(frozen=True)
class Optimum:
    """The minimum of the loss of an anchor, for each class."""

    positives: Floats  # K, the expected number of positives
    center: Floats  # probability of its own center, 1 / (1 + alpha K)
    each: Floats  # probability of each positive, alpha / (1 + alpha K)
    together: Floats  # probability of all positives together
    supcon: Floats  # probability of each positive in SupCon, 1 / K


def optimal_probabilities(counts: ArrayLike, *, alpha: float, memory: int, batch: int = 128, views: int = 2) -> Optimum:
    """Return the optimal probabilities for each class: the paper's remarks 1 (SupCon) and 2.

    If scores can take any value, `gpaco_loss` is minimal at its own target: 1 for the center and alpha for each of K
    positives, normalized. With q the share of a class, K = (views - 1) + q * (views * (batch - 1) + memory): the other
    views of the image, the other images of the batch, and the memory. The paper counts only the memory (batch=1,
    views=1). PaCo's queries and keys count as two views.

    Args:
        counts: (C,) images per class as seen in training.
        alpha: weight of a positive.
        memory: number of rows in the memory.
        batch: number of images contrasted with each other: a batch, or the part of it on one device.

    >>> full = optimal_probabilities([1300] * 1000, alpha=0.05, memory=8192, batch=1, views=1)
    >>> round(full.center[0], 2), f"{full.each[0]:.4f}"
    (np.float64(0.71), '0.0355')
    >>> tail = optimal_probabilities([90, 10], alpha=0.5, memory=100, batch=1)
    >>> tail.positives.tolist(), tail.center.round(3).tolist(), tail.supcon.round(3).tolist()
    ([91.0, 11.0], [0.022, 0.154], [0.011, 0.091])
    """
    counts = np.asarray(counts, np.float64)
    if counts.ndim != 1 or not np.isfinite(counts).all() or (counts < 0).any() or counts.sum() == 0:
        raise UserError("counts must be nonnegative numbers, some above 0", "pass the number of images of each class")
    _check(alpha=alpha, memory=memory, batch=batch, views=views)
    share = counts / counts.sum()
    positives = (views - 1) + share * (views * (batch - 1) + memory)
    center = 1 / (1 + alpha * positives)
    with np.errstate(divide="ignore"):
        supcon = np.where(positives > 0, np.minimum(1 / positives, 1), np.nan)
    return Optimum(positives, center, alpha * center, 1 - center, supcon)


@dataclass(frozen=True)
class ExtraLoss:
    """The extra loss on balanced data as a function of P_sup, the total mass of all centers."""

    p_sup: Floats
    loss: Floats  # the extra loss at p_sup
    supcon: Floats  # the value SupCon must reach there, summed over the positives
    best: float  # P_sup that minimizes the extra loss
    least: float  # the extra loss at `best`


def extra_loss_curve(num_classes: int, *, alpha: float, memory: int, points: int = 199) -> ExtraLoss:
    """Return the paper's extra loss and adaptive weighting on balanced data (Fig. 3 b), at `points` values of P_sup.

    With K = memory / num_classes positives, the loss of PaCo is cross entropy plus alpha times SupCon plus

        -log P_sup - alpha K log(1 - P_sup),      minimal at P_sup = 1 / (1 + alpha K)

    and to reach its optimum, alpha / (1 + alpha K) on each positive, SupCon has to reach

        -K log( alpha / (1 + alpha K) / (1 - P_sup) )

    which decreases with P_sup: the contrast becomes stronger as images approach their centers. Beyond `best`, the
    formula is below the minimum of SupCon, so a plot should end there.

    >>> full = extra_loss_curve(1000, alpha=0.05, memory=8192)  # full ImageNet
    >>> round(full.best, 2), round(float(full.p_sup[full.loss.argmin()]), 2)
    (0.71, 0.71)
    >>> [round(float(np.interp(p, full.p_sup, full.supcon)), 1) for p in (0.1, 0.5, full.best)]
    [26.5, 21.7, 17.2]
    """
    _check(num_classes=num_classes, points=points, memory=memory)
    if not 0 < alpha < np.inf:
        raise UserError(f"alpha must be above 0, got {alpha}", "pass the alpha of the loss, for example 0.05")
    positives = memory / num_classes
    p_sup = np.arange(1, points + 1) / (points + 1)

    def extra(p: Any) -> Any:
        return -np.log(p) - alpha * positives * np.log1p(-p)

    best = 1 / (1 + alpha * positives)
    supcon = -positives * (np.log(alpha * best) - np.log1p(-p_sup))
    least = float(extra(best)) if positives else 0.0
    return ExtraLoss(p_sup, extra(p_sup), supcon, best, least)


def _check(**numbers: float) -> None:
    """Require finite numbers: alpha and memory of at least 0, the others of at least 1."""
    for name, value in numbers.items():
        low = 0 if name in ("alpha", "memory") else 1
        if not low <= value < np.inf:
            raise UserError(f"{name} must be at least {low}, got {value}", f"pass {name}={low} or more")


def log_log_slope(counts: ArrayLike, values: ArrayLike) -> float | None:
    """Return the slope of log(values) against log(counts): 0 is balanced, 1 is proportional to the counts.

    It is fitted by least squares. Classes without a positive count and value are left out. None without two different
    counts.

    >>> round(log_log_slope([1000, 100, 10], [5.0, 0.5, 0.05]), 6), log_log_slope([10, 10], [1, 2])
    (1.0, None)
    """
    x, y = np.asarray(counts, np.float64), np.asarray(values, np.float64)
    used = (x > 0) & (y > 0) & np.isfinite(y)
    x, y = np.log(x[used]), np.log(y[used])
    if len(np.unique(x)) < 2:
        return None
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())
