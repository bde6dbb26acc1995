"""A simple page about one or more runs: figures by class frequency, a picture, and a row for every class."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gpaco.errors import UserError
from gpaco.files import write_atomic
from gpaco.run import Run

WIDTH, HEIGHT, LEFT, BOTTOM = 760, 300, 48, 40
KEYS = {"top1": "all", "many": "many", "medium": "medium", "few": "few", "macro": "macro", "macro_f1": "macro F1"}


def write_page(runs: Sequence[Run], out: Path, names: Sequence[str] | None = None) -> None:
    """Write the page about these runs; they must have the same classes."""
    environment = Environment(
        loader=PackageLoader("gpaco.pages"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    figures = [run.metrics for run in runs]
    for run, one in zip(runs, figures, strict=True):
        if [row["name"] for row in one["per_class"]] != [row["name"] for row in figures[0]["per_class"]]:
            raise UserError(
                f"{runs[0].folder} and {run.folder} do not have the same classes", "give runs on the same data"
            )
    short = [run.folder.name for run in runs]
    labels = list(names) if names else short if len(set(short)) == len(runs) else [str(run.folder) for run in runs]
    classes = [_class_row(figures, k) for k in range(len(figures[0]["per_class"]))]
    classes.sort(key=lambda row: -row["count"])
    rows = [
        {"name": name, "cells": [_percent(f[key]) for key in KEYS]} for name, f in zip(labels, figures, strict=True)
    ]
    first = figures[0]
    html = environment.get_template("simple.html").render(
        title=labels[0] if len(labels) == 1 else "Comparison",
        columns=list(KEYS.values()),
        rows=rows,
        names=labels,
        classes=classes,
        chart=_chart(figures),
        counts=first["counts"],
        n=first["n"],
        part=first["evaluated_on"],
        selected=first["selected_on"],
        width=WIDTH,
        height=HEIGHT,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, html)


def _class_row(figures: list[dict[str, Any]], k: int) -> dict[str, Any]:
    mine = [f["per_class"][k] for f in figures]
    return {
        "name": mine[0]["name"],
        "count": figures[0]["counts"][k],
        "group": mine[0]["group"],
        "recalls": [_percent(row["recall"]) for row in mine],
    }


def _chart(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Places of the dots (one per class and run) and of the axis marks, in pixels."""
    counts = figures[0]["counts"]
    top = max(math.log10(max(counts)), 1)

    def x(count: float) -> float:
        return round(LEFT + (WIDTH - LEFT - 12) * math.log10(max(count, 1)) / top, 1)

    def y(recall: float) -> float:
        return round((HEIGHT - BOTTOM) - (HEIGHT - BOTTOM - 12) * recall, 1)

    dots = [
        {"x": x(count), "y": y(row["recall"]), "run": r, "text": f"{row['name']}: {_percent(row['recall'])} of 100"}
        for r, f in enumerate(figures)
        for count, row in zip(counts, f["per_class"], strict=True)
        if row["recall"] is not None
    ]
    marks = [10**k for k in range(math.floor(top) + 1)]
    return {
        "dots": dots,
        "x_marks": [{"at": x(mark), "text": f"{mark:,}"} for mark in marks],
        "y_marks": [{"at": y(k / 4), "text": 25 * k} for k in range(5)],
        "left": LEFT,
        "base": HEIGHT - BOTTOM,
    }


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f}"
