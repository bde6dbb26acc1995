"""Confidence intervals: Wilson's for one rate and for means of rates, and normal ones for paired differences.

`right`, `wrong` and the like are numbers of test images per class, (C,); `group` is the group of each class.

A class with one or two images, or with all images right or all wrong, does not show how much its rate varies. So
variances are computed as if each class had two more images with the average rate of the group.
"""

import numpy as np
from numpy.typing import NDArray

from gpaco.metrics.arrays import Floats, Ints
from gpaco.metrics.groups import GROUPS

Bounds = dict[str, float | None]
METRICS = ("top1", "macro", *GROUPS)
_Z = 1.959963984540054  # 95% of a normal distribution is within this many standard deviations
_MORE = 2  # images added to each class


def wilson(k: float, n: float) -> tuple[float, float] | None:
    """Return Wilson's 95% interval for a rate observed as k of n; None for n = 0.

    >>> tuple(round(bound, 3) for bound in wilson(8, 10))
    (0.49, 0.943)
    """
    if n == 0:
        return None
    rate, share = k / n, _Z * _Z / n
    center = (rate + share / 2) / (1 + share)
    half = _Z * (rate * (1 - rate) / n + share / (4 * n)) ** 0.5 / (1 + share)
    return (0.0 if k == 0 else center - half, 1.0 if k == n else center + half)


def intervals(right: Ints, wrong: Ints, group: NDArray[np.str_]) -> dict[str, Bounds]:
    """Return 95% intervals of each metric: Wilson's, with the number of images that has the variance of the metric.

    >>> bounds = intervals(np.array([50, 25]), np.array([0, 25]), np.array(["many", "few"]))
    >>> {key: [round(end, 2) for end in bounds[key].values() if end] for key in ("many", "few", "medium")}
    {'many': [0.93, 1.0], 'few': [0.37, 0.63], 'medium': []}
    """
    result = {}
    for key, mine in _covered(right + wrong, group).items():
        k, n = right[mine], (right + wrong)[mine]
        if key == "top1":
            found = wilson(int(k.sum()), int(n.sum()))
        elif not len(n):
            found = None
        else:
            rates = _shrunk(k, n)
            variance = float((rates * (1 - rates) / n).sum()) / len(n) ** 2
            images = float(rates.mean() * (1 - rates.mean())) / variance
            found = wilson(float((k / n).mean()) * images, images)
        low, high = found or (None, None)
        result[key] = {"low": low, "high": high}
    return result


def paired_intervals(won: Ints, lost: Ints, same: Ints, group: NDArray[np.str_]) -> dict[str, Bounds]:
    """Return how much better a second model is on the same images, with 95% intervals.

    `won` counts the images that only the second model gets right, `lost` those that only the first does. If the models
    agree on every image, the ends come from Wilson's interval for the rate at which they differ.
    """
    result: dict[str, Bounds] = {}
    for key, mine in _covered(won + lost + same, group).items():
        up, down, n = won[mine], lost[mine], (won + lost + same)[mine]
        if not len(n):
            result[key] = dict.fromkeys(("difference", "low", "high"))
            continue
        if key == "top1":
            up, down, n = up.sum(keepdims=True), down.sum(keepdims=True), n.sum(keepdims=True)
        difference = float(((up - down) / n).mean())
        better, worse = _shrunk(up, n), _shrunk(down, n)
        variance = float(((better + worse - (better - worse) ** 2) / n).sum()) / len(n) ** 2
        half = _Z * variance**0.5
        if not (up + down).any():
            _, half = wilson(0, int(n.sum())) or (0.0, 0.0)
        result[key] = {
            "difference": difference,
            "low": max(difference - half, -1.0),
            "high": min(difference + half, 1.0),
        }
    return result


def _shrunk(k: Ints, n: Ints) -> Floats:
    """Return the rate of each class with two more images of the common rate; it is never 0 or 1."""
    common = (k.sum() + 0.5) / (n.sum() + 1)
    rates: Floats = (k + _MORE * common) / (n + _MORE)
    return rates


def _covered(test: Ints, group: NDArray[np.str_]) -> dict[str, NDArray[np.bool_]]:
    """Return a mask of the classes that each metric covers: those with test images."""
    return {key: (test > 0) & ((group == key) | (key in ("top1", "macro"))) for key in METRICS}
