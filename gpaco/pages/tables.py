"""The numbers of every picture as rows: what is in the page goes into the CSV files as it is."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpaco.metrics import GROUPS
from gpaco.pages.corruptions import COLUMNS
from gpaco.pages.evidence import Facts
from gpaco.pages.whatif import STEPS

_ROBUSTNESS = ("clean_error", "mean_error", "added", "added_low", "added_high", "mce", "relative_mce")
_MEASURED = ("measured_positives", "measured_centre", "measured_each_positive")

Table = tuple[list[str], Iterator[list[Any]]]


def tables(data: Facts) -> dict[str, Table]:
    """Every table by the name of its file: the header and the rows."""
    return {
        "summary": (["run", "figure", "value", "low", "high"], _summary(data)),
        "differences": (["run", "against", "figure", "difference", "low", "high"], _differences(data)),
        "classes": (
            ["run", "class", "group", "train", "test", "recall", "low", "high", "precision", "f1"],
            _classes(data),
        ),
        "curve": (["run", "train", "recall"], _fields(data, "curve", ["train", "recall"])),
        "flows": (["run", "from", "images", "right", *(f"to_{name}" for name in GROUPS)], _flows(data)),
        "head_pull": (["run", "group", "errors", "into_more_frequent", "share", "expected_by_chance"], _pull(data)),
        "pairs": (
            ["run", "class", "taken_for", "images", "of", "share", "share_low", "back", "back_of", "asymmetry"],
            _pairs(data),
        ),
        "missed": (["run", "class", "test_image", "taken_for", "confidence", "check_label"], _missed(data)),
        "labels_to_check": (["run", "test_image", "class", "looks_like"], _odd_labels(data)),
        "whatif": (["run", "towards", "weight", "all", "macro", *GROUPS, "under_this_prior"], _whatif(data)),
        "calibration": (
            ["run", "group", "lower", "upper", "images", "confidence", "accuracy"],
            _fields(data, "reliability", ["group", "lower", "upper", "images", "confidence", "accuracy"]),
        ),
        "temperature": (["run", "temperature", "group", "ece_before", "ece_after"], _temperature(data)),
        "gradients": (["run", "class", "train", "at_centre", "at_features"], _gradients(data)),
        "optimum": (
            ["run", "class", "shown", "positives", "centre", "each_positive", "supcon", *_MEASURED],
            _optimum(data),
        ),
        "extra_loss": (["run", "p_sup", "extra_loss", "supcon_must_reach"], _extra_loss(data)),
        "robustness": (["run", "group", "classes", "images", *_ROBUSTNESS, "baseline"], _robustness(data)),
        "corruptions": (
            ["run", "corruption", "kind", "severity", "group", "error", "low", "high", "difference", "against"],
            _corruptions(data),
        ),
        "data": (["class", "group", *_parts(data)], _data(data)),
    }


def at_position(data: Facts, run: Facts, right: Any, position: int) -> list[float | None]:
    """All, macro, many, medium, few and the accuracy under that prior, at a position of the slider."""
    test = np.asarray(run["test"])
    recalls = right[:, position] / np.where(test, test, np.nan)
    groups = np.asarray(data["groups"])
    prior = np.exp(log_prior(data, position))
    seen = test > 0
    means = [_mean(recalls[groups == name]) for name in GROUPS]
    under = float((prior * recalls)[seen].sum() / prior[seen].sum()) if seen.any() else None
    return [float(right[:, position].sum() / test.sum()) if seen.any() else None, _mean(recalls), *means, under]


def log_prior(data: Facts, position: int) -> Any:
    """The class distribution at a position of the slider, as logs that are not normalised."""
    towards, weight = _towards(position)
    return weight * np.asarray(data["priors"][towards])


def unpack(changes: list[list[int]]) -> Any:
    """The right images of each class at each position, (C, 201), from `whatif.changes`.

    >>> unpack([[3, 2, 2]])[0, :4].tolist()
    [3, 3, 5, 5]
    """
    steps = np.zeros((len(changes), 2 * STEPS + 1), np.int64)
    for c, (first, *rest) in enumerate(changes):
        steps[c, 0] = first
        steps[c, rest[::2]] = rest[1::2]
    return steps.cumsum(1)


def _towards(position: int) -> tuple[str, float]:
    return ("train", 1 - position / STEPS) if position <= STEPS else ("reversed", position / STEPS - 1)


def _mean(values: Any) -> float | None:
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None


def _fields(data: Facts, key: str, columns: list[str]) -> Iterator[list[Any]]:
    for run in data["runs"]:
        for row in run[key]:
            yield [run["name"], *(row[column] for column in columns)]


def _summary(data: Facts) -> Iterator[list[Any]]:
    for run in data["runs"]:
        for row in run["figures"]:
            yield [run["name"], row["figure"], row["value"], row["low"], row["high"]]
        for key, value in run["metrics"].items():
            yield [run["name"], key, value, None, None]
        yield [run["name"], "worst_tenth", run["worst_tenth"], None, None]
        yield [run["name"], "classwise_ece", run["classwise_ece"], None, None]


def _differences(data: Facts) -> Iterator[list[Any]]:
    for run, difference in zip(data["runs"], data["differences"], strict=True):
        for row in difference["rows"] if difference else []:
            yield [run["name"], difference["against"], row["figure"], row["difference"], row["low"], row["high"]]


def _classes(data: Facts) -> Iterator[list[Any]]:
    columns = ("train", "test", "recall", "low", "high", "precision", "f1")
    for run in data["runs"]:
        for c, name in enumerate(data["classes"]):
            yield [run["name"], name, data["groups"][c], *(run[column][c] for column in columns)]


def _flows(data: Facts) -> Iterator[list[Any]]:
    for run in data["runs"]:
        for row in run["flows"]:
            yield [run["name"], row["from"], row["images"], row["right"], *(row["to"][name] for name in GROUPS)]


def _pull(data: Facts) -> Iterator[list[Any]]:
    for run in data["runs"]:
        for group, row in run["pull"].items():
            yield [run["name"], group, row["errors"], row["up"], row["share"], row["expected"]]


def _pairs(data: Facts) -> Iterator[list[Any]]:
    names = data["classes"]
    for run in data["runs"]:
        for row in run["pairs"]:
            numbers = [row[key] for key in ("images", "of", "share", "low", "back", "back_of", "asymmetry")]
            yield [run["name"], names[row["class"]], names[row["taken_for"]], *numbers]


def _missed(data: Facts) -> Iterator[list[Any]]:
    names = data["classes"]
    for run in data["runs"]:
        for entry in run["confused"]:
            for row in entry["images"]:
                about = [row["name"], names[row["taken_for"]], row["confidence"], row["check"]]
                yield [run["name"], names[entry["class"]], *about]


def _odd_labels(data: Facts) -> Iterator[list[Any]]:
    names = data["classes"]
    for run in data["runs"]:
        for row in run["suspects"]:
            yield [run["name"], row["name"], names[row["class"]], names[row["taken_for"]]]


def _whatif(data: Facts) -> Iterator[list[Any]]:
    for run in data["runs"]:
        right = unpack(run["right"])
        for position in range(2 * STEPS + 1):
            towards, weight = _towards(position)
            yield [run["name"], towards, round(weight, 2), *at_position(data, run, right, position)]


def _temperature(data: Facts) -> Iterator[list[Any]]:
    for run in data["runs"]:
        for row in run["temperature"]["rows"]:
            yield [run["name"], run["temperature"]["temperature"], row["group"], row["before"], row["after"]]


def _gradients(data: Facts) -> Iterator[list[Any]]:
    for run in data["runs"]:
        found = run["gradients"]
        for c, name in enumerate(data["classes"] if found else []):
            yield [run["name"], name, run["train"][c], found["centres"][c], found["features"][c]]


def _optimum(data: Facts) -> Iterator[list[Any]]:
    for run in data["runs"]:
        found = run["optimum"]
        asked = [found["asked"][key] for key in ("positives", "centre", "each", "supcon")]
        measured = [found["measured"] and found["measured"][key] for key in ("positives", "centre", "each")]
        for c, name in enumerate(data["classes"]):
            yield [
                run["name"],
                name,
                found["shown"][c],
                *(column[c] for column in asked),
                *(column and column[c] for column in measured),
            ]


def _extra_loss(data: Facts) -> Iterator[list[Any]]:
    for run in data["runs"]:
        found = run["extra_loss"]
        for row in zip(found["p_sup"], found["loss"], found["supcon"], strict=True):
            yield [run["name"], *row]


def _robustness(data: Facts) -> Iterator[list[Any]]:
    for run, found in _corrupted(data):
        for panel in found["panels"]:
            about = [panel[key] for key in ("group", "classes", "images", *_ROBUSTNESS)]
            yield [run, *about, found["baseline"]]


def _corruptions(data: Facts) -> Iterator[list[Any]]:
    for run, found in _corrupted(data):
        for panel in found["panels"]:
            bounds = panel["clean_interval"] or (None, None)
            clean = [panel["group"], panel["clean_error"], *bounds, panel["clean_difference"]]
            yield [run, "clean", None, 0, *clean, found["against"]]
            for k, (name, kind) in enumerate(zip(found["names"], found["kinds"], strict=True)):
                for c, column in enumerate(COLUMNS):
                    bounds = panel["intervals"][k][c] or (None, None)
                    difference = panel["differences"] and panel["differences"][k][c]
                    about = [panel["group"], panel["errors"][k][c], *bounds, difference]
                    yield [run, name, kind, column, *about, found["against"]]


def _corrupted(data: Facts) -> Iterator[tuple[str, Facts]]:
    for run, found in zip(data["runs"], data["robustness"], strict=False):
        if found and not found["problem"]:
            yield run["name"], found


def _parts(data: Facts) -> list[str]:
    return list(data["data"]["parts"]) if data["data"] else ["train", "test"]


def _data(data: Facts) -> Iterator[list[Any]]:
    known = data["data"]
    columns = [part["counts"] for part in known["parts"].values()] if known else [data["train"], data["test"]]
    for row in zip(data["classes"], data["groups"], *columns, strict=True):
        yield list(row)
