"""Errors on corrupted images by group, and their means as defined by Hendrycks and Dietterich, all as fractions.

    mean_error     mean over 15 corruptions of the mean over 5 severities      (called mCE in the GPaCo paper)
    mce            mean over corruptions of error / error of a baseline        (called rel. mCE there)
    relative_mce   mean of (error - clean error) / the same of the baseline

Each needs all 75 errors: if one is missing, it is None, not the mean of the rest. A value of 1 means as good as the
baseline, which papers print as 100.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpaco.data.corruption.corruptions import CORRUPTIONS, SEVERITIES
from gpaco.data.corruption.published import CLEAN, Condition
from gpaco.metrics.classification import accuracies
from gpaco.metrics.groups import GROUPS

# Errors of torchvision's AlexNet on ImageNet-C, mean over severities, as Hendrycks published them for normalization,
# and on the clean validation images (the paper prints 43.5%, these weights have 43.478%).
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

_KEYS = ("error", *GROUPS)

Means = Mapping[str, float | None]  # of each corruption, over severities


@dataclass(frozen=True)
class Errors:
    """The errors of a model: for each condition, a row with error, many, medium and few; or published means."""

    rows: dict[Condition, dict[str, Any]]
    skipped: list[str]
    name: str = ""
    by_group: bool = True  # whether its groups match those of the other model, so that they can be compared
    published: Means | None = None

    def clean(self, key: str = "error") -> float | None:
        return self.rows[CLEAN][key] if CLEAN in self.rows else None

    def means(self, key: str = "error") -> Means:
        """Return the mean over severities for each corruption; None if one is missing."""
        if self.published is not None:
            return self.published
        return {name: _mean([self.rows.get((name, s), {}).get(key) for s in SEVERITIES]) for name in CORRUPTIONS}


def group_errors(
    predictions: ArrayLike, labels: ArrayLike, counts: ArrayLike | None, many: float, few: float
) -> dict[str, Any]:
    """Return `n`, the top-1 `error` over images, and for each group the mean of its per-class errors.

    A group without images is None; so are all groups if the training counts are unknown (None).

    >>> group_errors([0, 1, 1], [0, 0, 1], [500, 3], 100, 20)
    {'n': 3, 'error': 0.33333333333333337, 'many': 0.5, 'medium': None, 'few': 0.0}
    """
    labels = np.asarray(labels)
    size = int(labels.max(initial=0)) + 1 if counts is None else np.size(counts)
    right = accuracies(predictions, labels, counts, size, many=many, few=few)
    errors = {name: None if (value := right[name]) is None else 1 - value for name in ("top1", *GROUPS)}
    return {"n": len(labels), "error": errors.pop("top1"), **errors}


def summary(
    mine: Errors,
    baseline: Errors | None,
    sizes: Mapping[str, int | None],
    cuts: Mapping[str, float],
    conditions: Sequence[Condition],
    notes: list[str],
) -> dict[str, Any]:
    """Return all results, ready for JSON, and append the reasons for missing ones to `notes`.

    `sizes` is the number of classes in each group (None: unknown), `cuts` the limits between groups.
    """
    result: dict[str, Any] = {"version": 1}
    if tuple(conditions) == (CLEAN,):
        result["error"] = mine.clean()
        result["groups"] = {name: {"classes": sizes[name], "error": mine.clean(name)} for name in GROUPS}
        return result | {"notes": notes, "skipped": mine.skipped}
    result |= _means(mine, baseline, "error", notes)
    in_groups = baseline if baseline and baseline.by_group else None
    result["groups"] = {name: {"classes": sizes[name], **_means(mine, in_groups, name, [])} for name in GROUPS}
    means = {key: mine.means(key) for key in _KEYS}
    result["corruptions"] = {
        name: {
            **{str(s): _errors(mine.rows.get((name, s))) for s in SEVERITIES},
            "mean": {key: means[key][name] for key in _KEYS},
        }
        for name in CORRUPTIONS
        if any(condition[0] == name for condition in conditions)
    }
    result["cuts"] = dict(cuts)
    result["baseline"] = None
    if baseline is not None:
        result["baseline"] = {
            "name": baseline.name,
            "clean_error": baseline.clean(),
            "mean_error": mean_error(baseline.means()),
            "means": dict(baseline.means()),
        }
    return result | {"notes": notes, "skipped": mine.skipped}


def _errors(row: dict[str, Any] | None) -> dict[str, float | None] | None:
    return None if row is None else {key: row[key] for key in _KEYS}


def _means(mine: Errors, baseline: Errors | None, key: str, notes: list[str]) -> dict[str, Any]:
    clean, means = mine.clean(key), mine.means(key)
    found: dict[str, Any] = {"clean_error": clean, "mean_error": mean_error(means), "mce": None, "relative_mce": None}
    if clean is None:
        notes.append("the clean error is unknown: pass --clean DATA to get it and relative_mce")
    if baseline is None:
        return found
    there, there_clean = baseline.means(key), baseline.clean(key)
    found["mce"] = mce(means, there)
    found["relative_mce"] = relative_mce(means, clean, there, there_clean)
    if clean is not None and there_clean is not None:
        harmless = [name for name in CORRUPTIONS if (other := there.get(name)) is not None and other <= there_clean]
        if harmless:
            notes.append(f"relative_mce is null: the baseline's error does not rise under {', '.join(harmless)}")
    if found["mean_error"] is not None and found["mce"] is None:
        notes.append("mce is null: under some corruption, the baseline's error is 0 or missing")
    return found


def missing_conditions(wanted: Sequence[Condition]) -> list[str]:
    """Return a note if some of the 75 conditions are missing."""
    missing = [f"{name} {s}" for name in CORRUPTIONS for s in SEVERITIES if (name, s) not in wanted]
    if not missing:
        return []
    few = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
    return [f"{len(missing)} of the 75 conditions are missing ({few}): means over all of them are null"]


def mean_error(means: Means) -> float | None:
    """Return the mean over the 15 corruptions."""
    return _mean([means.get(name) for name in CORRUPTIONS])


def mce(means: Means, baseline: Means) -> float | None:
    """Return the mean corruption error: the mean of the ratios to the errors of a baseline.

    >>> mce(ALEXNET, ALEXNET)
    1.0
    """
    return _mean([_ratio(means.get(name), baseline.get(name)) for name in CORRUPTIONS])


def relative_mce(means: Means, clean: float | None, baseline: Means, baseline_clean: float | None) -> float | None:
    """Return the mean ratio of the errors that corruption adds; None if it adds nothing to those of the baseline.

    >>> relative_mce(ALEXNET, ALEXNET_CLEAN, ALEXNET, ALEXNET_CLEAN)
    1.0
    """
    if clean is None or baseline_clean is None:
        return None
    return mce(_above(means, clean), _above(baseline, baseline_clean))


def _above(means: Means, clean: float) -> dict[str, float | None]:
    return {name: None if (value := means.get(name)) is None else value - clean for name in CORRUPTIONS}


def _ratio(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None or other <= 0 else value / other


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None
