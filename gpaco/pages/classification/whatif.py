"""The exact effect of other class distributions at test time, at each position of the slider.

Adjusting logits to a class distribution adds its log to each class. Between equally likely classes (t = 0) and a
distribution (t = 1), on a log scale, the score of class c is logit_c + t * log prior_c: a straight line. An image is
right where the line of its label is above all others, which is an interval of t.
"""

import numpy as np
from numpy.typing import NDArray

from gpaco.metrics.arrays import Floats, Ints
from gpaco.pages.classification.evidence import Evidence, blocks, log_priors

STEPS = 100  # positions of the slider from one named distribution to the next


def right_between(logits: NDArray[np.float32], labels: Ints, slopes: Floats) -> tuple[Floats, Floats]:
    """Return the interval of t where each image is right with slopes * t added to its logits; empty if low > high.

    >>> logits = np.array([[1, 0], [0, 2]], np.float32)
    >>> low, high = right_between(logits, np.array([1, 1]), np.array([0.0, 2.0]))
    >>> low.tolist(), high.tolist()
    ([0.5, -1.0], [inf, inf])
    """
    low, high = np.full(len(labels), -np.inf), np.full(len(labels), np.inf)
    columns = np.arange(logits.shape[1])
    for rows in blocks(len(labels)):
        own = labels[rows, None]
        behind = np.asarray(logits[rows], np.float64)
        behind = behind - np.take_along_axis(behind, own, 1)  # how far the label is behind each class
        gain = slopes[own] - slopes  # how fast it catches up
        with np.errstate(divide="ignore", invalid="ignore"):
            meet = behind / gain
        low[rows] = np.where(gain > 0, meet, -np.inf).max(1)
        high[rows] = np.where(gain < 0, meet, np.inf).min(1)
        # With equal slopes, the order is the same for every t.
        beaten = (gain == 0) & ((behind > 0) | ((behind == 0) & (columns < own)))
        high[rows][beaten.any(1)] = -np.inf
    return low, high


def along(one: Evidence, counts: Ints) -> Ints:
    """Return how many images of each class are right at each position of the slider, (C, 201).

    Position 0 is the training distribution (of `counts`), 100 is equally likely classes, 200 is the reversed training
    distribution. At the position that raw logits assume, predictions are the raw ones, including ties.
    """
    priors = log_priors(counts)
    result = np.zeros((len(counts), 2 * STEPS + 1), np.int64)
    for name, turn in (("train", -1), ("reversed", 1)):
        low, high = right_between(one.uniform, one.labels, priors[name])
        first = np.ceil(np.clip(low, 0, 2) * STEPS).astype(np.int64)
        last = np.floor(np.clip(high, -1, 1) * STEPS).astype(np.int64)
        for position in range(0 if turn < 0 else 1, STEPS + 1):
            right = (first <= position) & (position <= last)
            result[:, STEPS + turn * position] = np.bincount(one.labels[right], minlength=len(counts))
    if (raw := raw_position(one, counts)) is not None:
        result[:, raw] = np.bincount(one.labels[one.predictions == one.labels], minlength=len(counts))
    return result


def raw_position(one: Evidence, counts: Ints) -> int | None:
    """Return the position of the distribution that raw logits assume; None if it is not on the slider."""
    train, assumed = (logs - logs.mean() for logs in (log_priors(counts)["train"], one.assumed))
    length = float(train @ train)
    weight = float(assumed @ train) / length if length else 0.0
    position = round(STEPS - STEPS * weight)
    there = 0 <= position <= STEPS and np.allclose(assumed, (STEPS - position) / STEPS * train, rtol=0, atol=1e-9)
    return position if there else None


def changes(right: Ints) -> list[list[int]]:
    """Compress the result of `along`: for each class the first number, then pairs of a position and the change there.

    >>> changes(np.array([[3, 3, 5, 4], [0, 0, 0, 0]]))
    [[3, 2, 2, 3, -1], [0]]
    """
    steps = np.diff(right, axis=1)
    result = [[int(first)] for first in right[:, 0]]
    for c, position in zip(*np.nonzero(steps), strict=True):
        result[c] += [int(position) + 1, int(steps[c, position])]
    return result
