"""The tables beside the page, as rows of CSV files, with the same numbers as the page."""

from collections.abc import Iterator
from typing import Any

from gpaco.pages.classification.corruptions import COLUMNS
from gpaco.pages.render import Facts, Table

Rows = Iterator[list[Any]]
_CLASSES = ("train", "test", "recall", "low", "high", "precision", "f1")
_PAIRS = {"images": "images", "of": "of", "share": "share", "low": "share_low"}  # key of a row: its column
_PAIRS |= {key: key for key in ("back", "back_of", "asymmetry")}


def tables(data: Facts) -> dict[str, Table]:
    """Return each table by the name of its file."""
    corruptions = ["run", "corruption", "kind", "severity", "group", "error", "low", "high", "difference", "against"]
    return {
        "summary": (["run", "figure", "value", "low", "high"], _summary(data)),
        "differences": (["run", "against", "figure", "difference", "low", "high"], _differences(data)),
        "classes": (["run", "class", "group", *_CLASSES], _classes(data)),
        "pairs": (["run", "class", "taken_for", *_PAIRS.values()], _pairs(data)),
        "labels_to_check": (["run", "test_image", "class", "looks_like"], _odd_labels(data)),
        "corruptions": (corruptions, _corruptions(data)),
    }


def _summary(data: Facts) -> Rows:
    for run in data["runs"]:
        for row in run["figures"]:
            yield [run["name"], *row.values()]
        others = run["metrics"] | {key: run[key] for key in ("worst_tenth", "classwise_ece")}
        for key, value in others.items():
            yield [run["name"], key, value, None, None]


def _differences(data: Facts) -> Rows:
    for run, difference in zip(data["runs"], data["differences"], strict=True):
        for row in difference["rows"] if difference else []:
            yield [run["name"], difference["against"], *row.values()]


def _classes(data: Facts) -> Rows:
    for run in data["runs"]:
        for c, name in enumerate(data["classes"]):
            yield [run["name"], name, data["groups"][c], *(run[column][c] for column in _CLASSES)]


def _pairs(data: Facts) -> Rows:
    names = data["classes"]
    for run in data["runs"]:
        for row in run["pairs"]:
            yield [run["name"], names[row["class"]], names[row["taken_for"]], *(row[key] for key in _PAIRS)]


def _odd_labels(data: Facts) -> Rows:
    names = data["classes"]
    for run in data["runs"]:
        for row in run["suspects"]:
            yield [run["name"], row["name"], names[row["class"]], names[row["taken_for"]]]


def _corruptions(data: Facts) -> Rows:
    for run, found in zip(data["runs"], data["robustness"], strict=False):  # empty if no run has robustness.json
        for panel in found["panels"] if found and not found["problem"] else []:
            none = (None, None)
            clean = [panel["clean_error"], *(panel["clean_interval"] or none), panel["clean_difference"]]
            yield [run["name"], "clean", None, 0, panel["group"], *clean, found["against"]]
            for k, (name, kind) in enumerate(zip(found["names"], found["kinds"], strict=True)):
                for c, column in enumerate(COLUMNS):
                    difference = panel["differences"] and panel["differences"][k][c]
                    cell = [panel["errors"][k][c], *(panel["intervals"][k][c] or none), difference]
                    yield [run["name"], name, kind, column, panel["group"], *cell, found["against"]]
