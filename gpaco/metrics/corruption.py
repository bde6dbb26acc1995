"""What is said about corrupted pictures: errors by group, and Hendrycks' means of them, all as fractions.

    mean_error     the mean over 15 corruptions of the mean over 5 severities     (called mCE in the GPaCo paper)
    mce            the mean over corruptions of error / error of a baseline       (called rel. mCE there)
    relative_mce   the mean of (error - clean error) / the same of the baseline

Each needs all 75 errors; where one is missing it is None, never the mean of the rest. As a fraction, 1 is as good as
the baseline; papers print 100.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpaco.data.corruption.corruptions import CORRUPTIONS, SEVERITIES
from gpaco.metrics.classification import GROUPS, groups

# Of torchvision's AlexNet on ImageNet-C, mean over severities, as Hendrycks published them for normalizing; and on the
# clean validation images (the paper prints 43.5 %, those weights have 43.478 %).
ALEXNET = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
ALEXNET_CLEAN = 0.43478

Means = Mapping[str, float | None]  # of a corruption, over severities


def errors(
    predictions: ArrayLike, labels: ArrayLike, counts: ArrayLike | None, many: float, few: float
) -> dict[str, Any]:
    """`n`, top-1 `error` over images, and the groups' means of per-class error.

    A group without pictures is None; so are all of them where the counts, which make the groups, are not known (None).

    >>> errors([0, 1, 1], [0, 0, 1], [500, 3], 100, 20)
    {'n': 3, 'error': 0.3333333333333333, 'many': 0.5, 'medium': None, 'few': 0.0}
    """
    labels, wrong = np.asarray(labels), np.asarray(predictions) != np.asarray(labels)
    found: dict[str, Any] = {"n": len(labels), "error": float(wrong.mean()) if len(labels) else None}
    if counts is None:
        return found | dict.fromkeys(GROUPS)
    group = groups(counts, many, few)
    shown = np.bincount(labels, minlength=len(group))
    missed = np.bincount(labels[wrong], minlength=len(group))
    for name in GROUPS:
        own = (group == name) & (shown > 0)
        found[name] = float((missed[own] / shown[own]).mean()) if own.any() else None
    return found


def severity_mean(by_severity: Mapping[int, float | None]) -> float | None:
    """The mean over the five severities; None if one is missing."""
    values = [by_severity.get(severity) for severity in SEVERITIES]
    return _mean(values)


def mean_error(means: Means) -> float | None:
    """The mean over the 15 corruptions."""
    return _mean([means.get(name) for name in CORRUPTIONS])


def mce(means: Means, baseline: Means) -> float | None:
    """Hendrycks' mean corruption error: the mean of the ratios to a baseline's errors.

    >>> mce(ALEXNET, ALEXNET)
    1.0
    """
    return _mean([_ratio(means.get(name), baseline.get(name)) for name in CORRUPTIONS])


def relative_mce(means: Means, clean: float | None, baseline: Means, baseline_clean: float | None) -> float | None:
    """The mean of the ratios of what corruption adds to the clean error. None if it adds nothing to the baseline's.

    >>> relative_mce(ALEXNET, ALEXNET_CLEAN, ALEXNET, ALEXNET_CLEAN)
    1.0
    """
    if clean is None or baseline_clean is None:
        return None
    added, added_there = _above(means, clean), _above(baseline, baseline_clean)
    return _mean([_ratio(added[name], added_there[name]) for name in CORRUPTIONS])


def _above(means: Means, clean: float) -> dict[str, float | None]:
    return {name: None if (value := means.get(name)) is None else value - clean for name in CORRUPTIONS}


def _ratio(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None or other <= 0 else value / other


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None
