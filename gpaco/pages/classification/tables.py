"""The tables beside the page, as rows of CSV files: their numbers are those of the page, to the last bit."""

from collections.abc import Iterator
from typing import Any

from gpaco.pages.classification.corruptions import COLUMNS
from gpaco.pages.classification.evidence import Facts

Table = tuple[list[str], Iterator[list[Any]]]


def tables(data: Facts) -> dict[str, Table]:
    """Return each table by the name of its file: the header and the rows."""
    return {
        "summary": (["run", "figure", "value", "low", "high"], _summary(data)),
        "differences": (["run", "against", "figure", "difference", "low", "high"], _differences(data)),
        "classes": (
            ["run", "class", "group", "train", "test", "recall", "low", "high", "precision", "f1"],
            _classes(data),
        ),
        "pairs": (
            ["run", "class", "taken_for", "images", "of", "share", "share_low", "back", "back_of", "asymmetry"],
            _pairs(data),
        ),
        "labels_to_check": (["run", "test_image", "class", "looks_like"], _odd_labels(data)),
        "corruptions": (
            ["run", "corruption", "kind", "severity", "group", "error", "low", "high", "difference", "against"],
            _corruptions(data),
        ),
    }


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


def _pairs(data: Facts) -> Iterator[list[Any]]:
    names = data["classes"]
    for run in data["runs"]:
        for row in run["pairs"]:
            numbers = [row[key] for key in ("images", "of", "share", "low", "back", "back_of", "asymmetry")]
            yield [run["name"], names[row["class"]], names[row["taken_for"]], *numbers]


def _odd_labels(data: Facts) -> Iterator[list[Any]]:
    names = data["classes"]
    for run in data["runs"]:
        for row in run["suspects"]:
            yield [run["name"], row["name"], names[row["class"]], names[row["taken_for"]]]


def _corruptions(data: Facts) -> Iterator[list[Any]]:
    for run, found in zip(data["runs"], data["robustness"], strict=False):  # nothing if no run has the file
        for panel in found["panels"] if found and not found["problem"] else []:
            bounds = panel["clean_interval"] or (None, None)
            clean = [panel["group"], panel["clean_error"], *bounds, panel["clean_difference"]]
            yield [run["name"], "clean", None, 0, *clean, found["against"]]
            for k, (name, kind) in enumerate(zip(found["names"], found["kinds"], strict=True)):
                for c, column in enumerate(COLUMNS):
                    bounds = panel["intervals"][k][c] or (None, None)
                    difference = panel["differences"] and panel["differences"][k][c]
                    about = [panel["group"], panel["errors"][k][c], *bounds, difference]
                    yield [run["name"], name, kind, column, *about, found["against"]]
