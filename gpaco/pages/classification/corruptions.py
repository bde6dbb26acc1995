"""Errors on corrupted images: by corruption, severity and group, beside the first run, and who suffers more."""

from collections.abc import Sequence
from math import hypot

import numpy as np

from gpaco.data.corruption.corruptions import KINDS, SEVERITIES
from gpaco.data.holdout import stratified_subset
from gpaco.metrics.groups import GROUPS
from gpaco.metrics.intervals import wilson
from gpaco.pages.classification.evidence import Evidence, Facts
from gpaco.pages.classification.summary import listed
from gpaco.pages.render import percent
from gpaco.pages.robustness_file import KEYS, figures, read_robustness

COLUMNS = (*map(str, SEVERITIES), "mean")


def robustness(found: Sequence[Evidence]) -> list[Facts | None]:
    """For each run what its robustness.json says, None without one; nothing at all if no run has it."""
    files = [read_robustness(one.run.folder) for one in found]
    if all(file is None for file in files):
        return []
    result: list[Facts | None] = []
    for one, file in zip(found, files, strict=True):
        facts = _about(one, file, found[0], files[0]) if isinstance(file, dict) else None
        result.append({"problem": file} if isinstance(file, str) else facts)
    return result


def _about(one: Evidence, file: Facts, first: Evidence, first_file: Facts | str | None) -> Facts:
    tried = file["corruptions"]
    kinds = {name: kind for kind, members in KINDS.items() for name in members if name in tried}
    images = images_by_group(one, file)
    against, why = _comparable(one, file, first, first_file)
    alike = one.metrics["counts"] == first.metrics["counts"] and file["cuts"] == (against or file)["cuts"]
    if against and not alike:
        why = f"Groups are not compared: {one.name} was not trained on as many images of each class as {first.name}."
    return {
        "problem": None,
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
            _panel(file, group, list(kinds), images[group], against if group == "all" or alike else None)
            for group in KEYS
        ],
    }


def _panel(file: Facts, group: str, named: Sequence[str], images: Facts | None, against: Facts | None) -> Facts:
    """The errors of one group: rows of five severities and their mean, with intervals if its images are known."""
    known = figures(file, group)
    errors = _errors(file, group, named)
    effective: float | None = None if images is None else images["effective"]
    other = None if against is None else _errors(against, group, named)
    clean, mean = known["clean_error"], known["mean_error"]
    added, low, high = _combined([(1, mean), (-1, clean)], [effective, effective])
    there = None if against is None else figures(against, group)["clean_error"]
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


def _errors(file: Facts, group: str, named: Sequence[str]) -> list[list[float | None]]:
    """Rows of severities 1 to 5 and their mean; None where it was not tried, or is not known."""
    tried = file["corruptions"]
    return [[_error(tried.get(name), column, KEYS[group]) for column in COLUMNS] for name in named]


def _error(row: Facts | None, column: str, key: str) -> float | None:
    cell = row and row[column]
    return cell[key] if cell else None


def images_by_group(one: Evidence, file: Facts) -> dict[str, Facts | None]:
    """The images of each group that were corrupted, and how many they are worth; None where that is not known.

    They are the run's test images or that part of them which the same seed chooses again. The error of a group is the
    mean over its classes, so images are worth as many as would say as much if all its K classes had equally many:
    K^2 / (1/n_1 + ... + 1/n_K).
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


def _combined(
    terms: Sequence[tuple[int, float | None]], images: Sequence[float | None]
) -> tuple[float | None, float | None, float | None]:
    """A sum of rates with their signs and its 95 % interval, from the binomial (Wilson) interval of each.

    The distances to the ends are added as squares (Newcombe, 1998), as if the rates were of different images. Errors
    with and without corruption are of the same ones and go together, so the interval is rather too wide.

    >>> [round(value, 3) for value in _combined([(1, 0.5), (-1, 0.2)], [100.0, 100.0])]
    [0.3, 0.169, 0.417]
    """
    if any(rate is None for _, rate in terms):
        return None, None, None
    value = sum(sign * (rate or 0) for sign, rate in terms)
    below, above = 0.0, 0.0
    for (sign, rate), number in zip(terms, images, strict=True):
        bounds = _interval(rate, number)
        if bounds is None or rate is None:
            return value, None, None
        down, up = rate - bounds[0], bounds[1] - rate
        below, above = hypot(below, down if sign > 0 else up), hypot(above, up if sign > 0 else down)
    return value, value - below, value + above


def _comparable(
    one: Evidence, file: Facts, first: Evidence, other: Facts | str | None
) -> tuple[Facts | None, str | None]:
    """The file of the first run if both saw the same corrupted images; and why not, for runs after the first."""
    if one is first:
        return None, None
    if not isinstance(other, dict):
        return None, f"No difference: {first.name} has no errors on corrupted images to compare with."
    same = all(file[key] == other[key] for key in ("n", "subset", "seed", "constants", "skipped"))
    if not same or one.images != first.images or not np.array_equal(one.labels, first.labels):
        return None, f"No difference: {one.name} was not tried on the same corrupted images as {first.name}."
    return other, None


def _settings(file: Facts) -> str:
    """What was tried, in words."""
    parts = [f"{file['n']:,} images" + ("" if file["subset"] is None else ", a stratified part of the test images")]
    if file["constants"] is not None:
        parts.append(f"constants of {'CIFAR-C' if file['constants'] == 'cifar' else 'ImageNet-C'}")
    parts.append(f"seed {file['seed']}")
    if file["prior"] is not None:
        parts.append(f"logits corrected for the prior {file['prior']}")
    if file["unbiased"]:
        parts.append("logits corrected for what the loss takes from frequent classes")
    return "; ".join(parts) + "."


def _doubts(one: Evidence, file: Facts) -> list[str]:
    """A word if the clean error is not that of the page, though nothing explains it."""
    here, top1 = file["clean_error"], one.metrics["top1"]
    plain = file["subset"] is None and file["prior"] is None and not file["unbiased"] and not file["skipped"]
    if not plain or here is None or top1 is None or abs(here - (1 - top1)) <= max(0.005, 2 / file["n"]):
        return []
    return [
        f"the clean error here is {100 * here:.1f} %, that of metrics.json {100 * (1 - top1):.1f} %: "
        "another checkpoint, another prior, or other images"
    ]


def sentence(names: Sequence[str], found: Sequence[Facts | None]) -> str:
    """Which classes corruption hits harder, in plain words; nothing where it may be chance."""
    hits = {name: hit for name, one in zip(names, found, strict=False) if (hit := _hit(one))}
    if len(names) == 1 and hits:
        (hit,) = hits.values()
        harder, other = ("rare", "frequent") if hit["rare"] else ("frequent", "rare")
        start, end = percent(hit["from"], 0), percent(hit["to"], 0)
        other_start, other_end = percent(hit["other_from"], 0), percent(hit["other_to"], 0)
        return (
            f"Corruption hits {harder} classes harder than {other} ones: their error goes from {start} to {end} of 100 "
            f"images, that of {other} ones from {other_start} to {other_end}"
            f"{', which had less to lose' if hit['less_to_lose'] else ''}."
        )
    rare, frequent = ([name for name, hit in hits.items() if hit["rare"] == wanted] for wanted in (True, False))
    parts = [f"rare classes harder than frequent ones with {listed(rare)}"] if rare else []
    if frequent:
        parts.append(f"frequent {'ones' if rare else 'classes'} harder than rare ones with {listed(frequent)}")
    return f"Corruption hits {', '.join(parts)} (see Robustness)." if parts else ""


def _hit(one: Facts | None) -> Facts | None:
    """Whether corruption adds more errors to the rarest or to the most frequent group; None if it may be chance."""
    panels = [] if one is None or one["problem"] else one["panels"][1:]
    there = [panel for panel in panels if panel["added_low"] is not None]
    if len(there) < 2:
        return None
    frequent, rare = there[0], there[-1]
    terms, images = [], []
    for sign, panel in ((1, rare), (-1, frequent)):
        for way, key in ((1, "mean_error"), (-1, "clean_error")):
            terms.append((sign * way, panel[key]))
            images.append(panel["effective"])
    _, low, high = _combined(terms, images)
    if low is None or high is None or low <= 0 <= high:
        return None
    harder, other = (rare, frequent) if low > 0 else (frequent, rare)
    return {
        "rare": low > 0,
        "from": harder["clean_error"],
        "to": harder["mean_error"],
        "other_from": other["clean_error"],
        "other_to": other["mean_error"],
        "less_to_lose": harder["added"] > 1 - other["clean_error"],
    }
