"""The optimum of the losses in formulas: the paper's remarks 1 and 2, its extra loss and its adaptive weighting."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpaco.errors import UserError
from gpaco.metrics.arrays import Floats


@dataclass(frozen=True)
class Optimum:
    """Where the loss of an anchor is least, for each class."""

    positives: Floats  # K, how many an anchor is expected to have
    center: Floats  # probability of the own center, 1 / (1 + alpha K)
    each: Floats  # of each positive, alpha / (1 + alpha K)
    together: Floats  # of all positives
    supcon: Floats  # of each positive in SupCon, 1 / K


def optimal_probabilities(counts: ArrayLike, *, alpha: float, memory: int, batch: int = 128, views: int = 2) -> Optimum:
    """The probabilities that the loss asks for, by class: the paper's remarks 1 (SupCon) and 2.

    On free scores the minimum of `gpaco_loss` is its own target, 1 for the center and alpha for each of K positives,
    normalized. With q the share of a class, K = (views - 1) + q * (views * (batch - 1) + memory): the other views of
    the image itself, of the other images of the batch, and the memory. The paper keeps the memory alone (batch=1,
    views=1). PaCo's queries and keys are two views.

    Args:
        counts: (C,) images per class as training shows them.
        alpha: weight of a positive.
        memory: rows of the memory.
        batch: images that are contrasted with each other: a batch, or the part of it on one device.

    >>> full = optimal_probabilities([1300] * 1000, alpha=0.05, memory=8192, batch=1, views=1)
    >>> round(full.center[0], 2), f"{full.each[0]:.4f}"
    (np.float64(0.71), '0.0355')
    >>> tail = optimal_probabilities([90, 10], alpha=0.5, memory=100, batch=1)
    >>> tail.positives.tolist(), tail.center.round(3).tolist(), tail.supcon.round(3).tolist()
    ([91.0, 11.0], [0.022, 0.154], [0.011, 0.091])
    """
    counts = np.asarray(counts, np.float64)
    if counts.ndim != 1 or not np.isfinite(counts).all() or (counts < 0).any() or counts.sum() == 0:
        raise UserError("counts must be a list of numbers, not negative, some above 0", "give the images of each class")
    _check(alpha=alpha, memory=memory, batch=batch, views=views)
    share = counts / counts.sum()
    positives = (views - 1) + share * (views * (batch - 1) + memory)
    center = 1 / (1 + alpha * positives)
    with np.errstate(divide="ignore"):
        supcon = np.where(positives > 0, np.minimum(1 / positives, 1), np.nan)
    return Optimum(positives, center, alpha * center, 1 - center, supcon)


@dataclass(frozen=True)
class ExtraLoss:
    """The extra loss of balanced data as a function of P_sup, the mass of all centers together."""

    p_sup: Floats
    loss: Floats  # the extra loss there
    supcon: Floats  # what SupCon must come down to there, summed over the positives
    best: float  # P_sup at which the extra loss is least
    least: float  # the extra loss there
    supcon_least: float  # the least value that SupCon has: the curve `supcon` reaches it at `best`


def extra_loss_curve(num_classes: int, *, alpha: float, memory: int, points: int = 199) -> ExtraLoss:
    """The paper's extra loss and adaptive weighting on balanced data (Fig. 3 b), at `points` values of P_sup.

    With K = memory / num_classes positives, the loss of PaCo is cross entropy plus alpha times SupCon plus

        -log P_sup - alpha K log(1 - P_sup),      least at P_sup = 1 / (1 + alpha K)

    and for its optimum, alpha / (1 + alpha K) on each positive, SupCon has to come down to

        -K log( alpha / (1 + alpha K) / (1 - P_sup) )

    the lower, the larger P_sup has become: the contrast grows stronger as images find their centers. Beyond `best` the
    formula asks for less than SupCon can be, so a picture of it ends there.

    >>> full = extra_loss_curve(1000, alpha=0.05, memory=8192)  # full ImageNet
    >>> round(full.best, 2), round(float(full.p_sup[full.loss.argmin()]), 2)
    (0.71, 0.71)
    >>> [round(float(np.interp(p, full.p_sup, full.supcon)), 1) for p in (0.1, 0.5, full.best)]
    [26.5, 21.7, 17.2]
    """
    _check(num_classes=num_classes, points=points, memory=memory)
    if not 0 < alpha < np.inf:
        raise UserError(f"alpha must be above 0, got {alpha}", "without it there is no contrast to weigh")
    positives = memory / num_classes
    p_sup = np.arange(1, points + 1) / (points + 1)

    def extra(p: Any) -> Any:
        return -np.log(p) - alpha * positives * np.log1p(-p)

    best = 1 / (1 + alpha * positives)
    supcon = -positives * (np.log(alpha * best) - np.log1p(-p_sup))
    least = float(extra(best)) if positives else 0.0
    supcon_least = float(positives * np.log(positives)) if positives else 0.0
    return ExtraLoss(p_sup, extra(p_sup), supcon, best, least, supcon_least)


def _check(**numbers: float) -> None:
    """Refuse what is no number of that kind: alpha and memory may be 0, the rest starts at 1."""
    for name, value in numbers.items():
        low = 0 if name in ("alpha", "memory") else 1
        if not low <= value < np.inf:
            raise UserError(f"{name} must be at least {low}, got {value}", f"give another {name}")
