"""Confidence intervals: Wilson's for one rate, a bootstrap for accuracies, group means and paired differences.

`right`, `wrong` and the like are numbers of test images of each class, (C,); `group` is the group of each class.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpaco.metrics.arrays import Floats, Ints
from gpaco.metrics.groups import GROUPS

Bounds = dict[str, float | None]
METRICS = ("top1", "macro", *GROUPS)
DRAWS = 2000
_BLOCK = 100  # draws at a time: 10,000 classes stay below 30 MB
_SEED = 0


def wilson(k: float, n: float) -> tuple[float, float] | None:
    """Return Wilson's 95 % interval for a rate observed as k of n; None for n = 0.

    >>> tuple(round(bound, 3) for bound in wilson(8, 10))
    (0.49, 0.943)
    """
    if n == 0:
        return None
    z = 1.959963984540054
    rate, share = k / n, z * z / n
    center = (rate + share / 2) / (1 + share)
    half = z * (rate * (1 - rate) / n + share / (4 * n)) ** 0.5 / (1 + share)
    return (0.0 if k == 0 else center - half, 1.0 if k == n else center + half)


def intervals(right: Ints, wrong: Ints, group: NDArray[np.str_]) -> dict[str, Bounds]:
    """Return bootstrap 95 % intervals of each metric: 2,000 times, each image counts as often as a Poisson draw says.

    If all images are right, or all wrong, every draw is the same: then it is Wilson's interval.

    >>> bounds = intervals(np.array([50, 25]), np.array([0, 25]), np.array(["many", "few"]))
    >>> {key: [round(end, 2) for end in bounds[key].values() if end] for key in ("many", "few", "medium")}
    {'many': [0.93, 1.0], 'few': [0.36, 0.64], 'medium': []}
    """
    result = {}
    for key, mine, drawn in _bootstrap([right, wrong], group, lambda hit, miss: hit):
        k, n = int(right[mine].sum()), int((right + wrong)[mine].sum())
        plain = wilson(k, n)
        low, high = plain if plain and k in (0, n) else _middle(drawn)
        result[key] = {"low": low, "high": high}
    return result


def paired_intervals(won: Ints, lost: Ints, same: Ints, group: NDArray[np.str_]) -> dict[str, Bounds]:
    """Return how much better a second model is on the same images, with the bootstrap intervals of `intervals`.

    `won` counts the images that only the second model has right, `lost` those that only the first has. If the models
    agree on every image, the ends are what Wilson's interval leaves for images on which they differ.
    """
    test = won + lost + same
    result = {}
    for key, mine, drawn in _bootstrap([won, lost, same], group, lambda won, lost, same: won - lost):
        number = int(test[mine].sum())
        difference = None
        if number:
            gain = (won - lost)[mine]
            difference = float(gain.sum() / number if key == "top1" else (gain / test[mine]).mean())
        low, high = _middle(drawn)
        if number and not (won + lost)[mine].any():
            _, high = wilson(0, number) or (None, None)
            low = None if high is None else -high
        result[key] = {"difference": difference, "low": low, "high": high}
    return result


def _bootstrap(
    cells: Sequence[Ints], group: NDArray[np.str_], gain: Callable[..., Ints]
) -> Iterator[tuple[str, NDArray[np.bool_], Floats]]:
    """Yield each metric, the classes it covers as a mask, and its values on 2,000 test sets.

    Each test set draws the number of images of each class in each cell; `gain` returns from the drawn cells how many
    images count. A class without an image in a draw is left out of its means.
    """
    there = np.sum(cells, 0) > 0
    members = {key: there & ((group == key) | (key in ("top1", "macro"))) for key in METRICS}
    generator = np.random.default_rng(_SEED)
    parts: dict[str, list[Any]] = {key: [] for key in members}
    for _ in range(DRAWS // _BLOCK):
        drawn = [generator.poisson(cell, (_BLOCK, len(cell))) for cell in cells]
        counted, total = gain(*drawn), np.sum(drawn, 0)
        rates = counted / np.maximum(total, 1)
        for key, mine in members.items():
            if key == "top1":
                parts[key].append(counted.sum(1) / np.maximum(total.sum(1), 1))
            elif mine.any():
                parts[key].append(rates[:, mine].sum(1) / np.maximum((total[:, mine] > 0).sum(1), 1))
    for key, mine in members.items():
        yield key, mine, np.concatenate(parts[key]) if parts[key] else np.zeros(0)


def _middle(drawn: Floats) -> tuple[float | None, float | None]:
    """Return the ends of the middle 95 %."""
    if not len(drawn):
        return None, None
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)
