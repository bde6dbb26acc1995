"""Errors on corrupted images by corruption, severity and group, and their differences from the first run."""

from collections.abc import Iterable, Sequence
from math import hypot

import numpy as np

from gpaco.data.corruption.corruptions import KINDS, SEVERITIES
from gpaco.data.holdout import stratified_subset
from gpaco.metrics.groups import GROUPS
from gpaco.metrics.intervals import wilson
from gpaco.pages.classification.evidence import Evidence
from gpaco.pages.render import Facts, percent
from gpaco.pages.runs import read_robustness

COLUMNS = (*map(str, SEVERITIES), "mean")
KEYS = {"all": "error", **{name: name for name in GROUPS}}  # group on the page: key in robustness.json


def robustness(found: Sequence[Evidence]) -> list[Facts | None]:
    """Return the content of each run's robustness.json, or None; an empty list if no run has one."""
    files = [read_robustness(one.run.folder) for one in found]
    if all(file is None for file in files):
        return []
    return [_about(one, file, found[0], files[0]) for one, file in zip(found, files, strict=True)]


def _about(one: Evidence, file: Facts | None, first: Evidence, first_file: Facts | None) -> Facts | None:
    if file is None:
        return None
    kinds = {name: kind for kind, members in KINDS.items() for name in members if name in file["corruptions"]}
    images = images_by_group(one, file)
    against, why = _against(one, file, first, first_file)
    alike = one.metrics["counts"] == first.metrics["counts"] and file["cuts"] == (against or file)["cuts"]
    if against and not alike:
        why = f"Groups are not compared: those of {one.name} and {first.name} have different classes."
    return {
        "about": _settings(file),
        "baseline": file["baseline"] and file["baseline"]["name"],
        "notes": [*_doubts(one, file), *file["notes"]],
        "skipped": len(file["skipped"]),
        "left_out": file["skipped"][:5],
        "names": list(kinds),
        "kinds": list(kinds.values()),
        "against": against and first.name,
        "not_compared": why,
        "panels": [
            _panel(file, group, kinds, images[group], against if group == "all" or alike else None) for group in KEYS
        ],
    }


def _panel(file: Facts, group: str, named: Iterable[str], images: Facts | None, against: Facts | None) -> Facts:
    """Return the errors of one group: rows of five severities and their mean, with intervals if known."""
    known = _overall(file, group)
    errors = _errors(file, group, named)
    effective: float | None = None if images is None else images["effective"]
    other = None if against is None else _errors(against, group, named)
    clean, mean = known["clean_error"], known["mean_error"]
    added, low, high = combined([(1, mean, effective), (-1, clean, effective)])
    there = None if against is None else _overall(against, group)["clean_error"]
    return {
        "group": group,
        "classes": sum(file["groups"][name]["classes"] for name in GROUPS if group in ("all", name)),
        "images": images and images["images"],
        "effective": effective,
        **known,
        "clean_interval": _interval(clean, effective),
        "added": added,
        "added_low": low,
        "added_high": high,
        "errors": errors,
        "intervals": [[_interval(error, effective) for error in row] for row in errors],
        "clean_difference": None if there is None or clean is None else clean - there,
        "differences": other
        and [
            [None if a is None or b is None else a - b for a, b in zip(*pair, strict=True)]
            for pair in zip(errors, other, strict=True)
        ],
    }


def _overall(file: Facts, group: str) -> Facts:
    home = file if group == "all" else file["groups"][group]
    return {key: home[key] for key in ("clean_error", "mean_error", "mce", "relative_mce")}


def _errors(file: Facts, group: str, named: Iterable[str]) -> list[list[float | None]]:
    """Return rows of severities 1 to 5 and their mean; None for a condition that was not tested."""
    rows = [file["corruptions"].get(name, {}) for name in named]
    return [[cell[KEYS[group]] if (cell := row.get(column)) else None for column in COLUMNS] for row in rows]


def images_by_group(one: Evidence, file: Facts) -> dict[str, Facts | None]:
    """Return the number of corrupted images in each group, and their effective number; None if unknown.

    They are the run's test images, or the subset that the same seed selects. The error of a group is the mean over its
    K classes, with the variance of an error over K^2 / (1/n_1 + ... + 1/n_K) images.
    """
    labels = one.labels
    if file["subset"] is not None and len(labels):
        labels = labels[stratified_subset(labels, file["subset"], file["seed"])]
    shown, test = (np.bincount(some, minlength=len(one.classes)) for some in (labels, one.labels))
    known = len(labels) == file["n"] and all(
        int(((one.groups == name) & (test > 0)).sum()) == file["groups"][name]["classes"] for name in GROUPS
    )
    result: dict[str, Facts | None] = dict.fromkeys(KEYS)
    result["all"] = {"images": file["n"], "effective": float(file["n"])}
    for name in GROUPS if known else ():
        own = shown[(one.groups == name) & (shown > 0)]
        worth = len(own) ** 2 / (1 / own).sum() if len(own) else 0
        result[name] = {"images": int(own.sum()), "effective": float(worth)}
    return result


def _interval(rate: float | None, images: float | None) -> list[float] | None:
    bounds = None if rate is None or not images else wilson(rate * images, images)
    return bounds and list(bounds)


def combined(terms: list[tuple[int, float | None, float | None]]) -> tuple[float | None, float | None, float | None]:
    """Return a sum of rates and its 95% interval; each term is a sign, a rate and a number of images.

    The distances to the ends of the Wilson intervals are added as squares (Newcombe, 1998), as for independent rates.
    Errors with and without corruption are on the same images and correlated, so the interval is somewhat too wide.

    >>> [round(value, 3) for value in combined([(1, 0.5, 100), (-1, 0.2, 100)])]
    [0.3, 0.169, 0.417]
    """
    value, below, above, known = 0.0, 0.0, 0.0, True
    for sign, rate, images in terms:
        if rate is None:
            return None, None, None
        value += sign * rate
        low, high = _interval(rate, images) or (rate, rate)
        known = known and bool(images)
        down, up = (rate - low, high - rate) if sign > 0 else (high - rate, rate - low)
        below, above = hypot(below, down), hypot(above, up)
    return (value, value - below, value + above) if known else (value, None, None)


def _against(one: Evidence, file: Facts, first: Evidence, other: Facts | None) -> tuple[Facts | None, str | None]:
    """Return the file of the first run if both were tested on the same corrupted images, or the reason why not."""
    if one is first:
        return None, None
    if other is None:
        return None, f"No difference: {first.name} was not tested on corrupted images."
    same = all(file[key] == other[key] for key in ("n", "subset", "seed", "constants", "skipped"))
    if not same or one.images != first.images or not np.array_equal(one.labels, first.labels):
        return None, f"No difference: {one.name} and {first.name} were not tested on the same corrupted images."
    return other, None


def _settings(file: Facts) -> str:
    """Describe the test in a sentence."""
    parts = [f"{file['n']:,} images" + ("" if file["subset"] is None else ", a stratified subset of the test images")]
    if file["constants"] is not None:
        parts.append(f"constants of {'CIFAR-C' if file['constants'] == 'cifar' else 'ImageNet-C'}")
    parts.append(f"seed {file['seed']}")
    if file["prior"] is not None:
        parts.append(f"logits adjusted to the prior {file['prior']}")
    if file["unbiased"]:
        parts.append("bias of the loss against frequent classes removed")
    return "; ".join(parts) + "."


def _doubts(one: Evidence, file: Facts) -> list[str]:
    """Return a note if the clean error differs from metrics.json and no setting explains it."""
    here, top1 = file["clean_error"], one.metrics["top1"]
    plain = file["subset"] is None and file["prior"] is None and not file["unbiased"] and not file["skipped"]
    if not plain or here is None or top1 is None or abs(here - (1 - top1)) <= max(0.005, 2 / file["n"]):
        return []
    return [
        f"The clean error here is {percent(here)}%, but {percent(1 - top1)}% in metrics.json: "
        "the checkpoint, the prior or the images differ."
    ]
