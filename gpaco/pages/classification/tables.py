"""The tables beside the page, as rows of CSV files, with the same numbers as the page."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from gpaco.pages.classification.corruptions import COLUMNS
from gpaco.pages.render import Facts, Table

_CLASSES = ("train", "test", "recall", "low", "high", "precision", "f1")
_PAIRS = {"images": "images", "of": "of", "share": "share", "low": "share_low"}  # key of a row: its column
_PAIRS |= {key: key for key in ("back", "back_of", "asymmetry")}
_HEADERS = {  # by the name of the file
    "summary": ("run", "figure", "value", "low", "high"),
    "differences": ("run", "against", "figure", "difference", "low", "high"),
    "classes": ("run", "class", "group", *_CLASSES),
    "pairs": ("run", "class", "taken_for", *_PAIRS.values()),
    "labels_to_check": ("run", "test_image", "class", "looks_like"),
    "corruptions": ("run", "corruption", "kind", "severity", "group", "error", "low", "high", "difference", "against"),
}


def tables(data: Facts) -> dict[str, Table]:
    """Return each table by the name of its file."""
    rows: dict[str, list[list[Any]]] = defaultdict(list)
    names, groups = data["classes"], data["groups"]
    for k, run in enumerate(data["runs"]):
        me, difference = run["name"], data["differences"][k]
        rows["summary"] += [[me, *row.values()] for row in run["figures"]]
        others = run["metrics"] | {key: run[key] for key in ("worst_tenth", "classwise_ece")}
        rows["summary"] += [[me, key, value, None, None] for key, value in others.items()]
        if difference:
            rows["differences"] += [[me, difference["against"], *row.values()] for row in difference["rows"]]
        for c, name in enumerate(names):
            rows["classes"].append([me, name, groups[c], *(run[column][c] for column in _CLASSES)])
        for row in run["pairs"]:
            rows["pairs"].append([me, names[row["class"]], names[row["taken_for"]], *(row[key] for key in _PAIRS)])
        for row in run["suspects"]:
            rows["labels_to_check"].append([me, row["name"], names[row["class"]], names[row["taken_for"]]])
        found = data["robustness"][k] if data["robustness"] else None  # empty if no run has robustness.json
        if found:
            rows["corruptions"] += [[me, *row] for row in _corruptions(found)]
    return {file: (header, rows[file]) for file, header in _HEADERS.items()}


def _corruptions(found: Facts) -> Iterator[list[Any]]:
    none = (None, None)
    for panel in found["panels"]:
        clean = [panel["clean_error"], *(panel["clean_interval"] or none), panel["clean_difference"]]
        yield ["clean", None, 0, panel["group"], *clean, found["against"]]
        for k, (name, kind) in enumerate(zip(found["names"], found["kinds"], strict=True)):
            for c, column in enumerate(COLUMNS):
                difference = panel["differences"] and panel["differences"][k][c]
                cell = [panel["errors"][k][c], *(panel["intervals"][k][c] or none), difference]
                yield [name, kind, column, panel["group"], *cell, found["against"]]
