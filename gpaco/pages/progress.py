"""The page about runs that are still training, for both tasks: curves so far."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpaco.errors import UserError
from gpaco.pages.render import MARK, PROGRESS_MARK, Facts, Table, write_files
from gpaco.pages.runs import short_names
from gpaco.recipes.recipe import stages
from gpaco.tasks.duration import rounded
from gpaco.training.run import Run, stage_folder

VALIDATION = {"val_top1": "all", "val_miou": "all", "val_many": "many", "val_medium": "medium", "val_few": "few"}
CHARTS = {"Loss": {"loss": ""}, "Validation": VALIDATION, "Learning rate": {"lr": ""}}
DASHES = ("", "10 5", "3 4", "14 4 3 4")
WIDTH, HEIGHT = 1080, 300
LEFT, RIGHT, TOP, BOTTOM = 64, WIDTH - 130, 14, HEIGHT - 34


def write_progress(runs: Sequence[Run], page: Path, names: Sequence[str] | None) -> Path:
    """Write the page about runs that have not all finished."""
    found = [about_run(run, name) for run, name in zip(runs, names or short_names(runs), strict=True)]
    if not any(run["rows"] for run in found):
        raise UserError(f"{runs[0].folder} has not finished its first epoch", "try again after the first epoch")
    charts = [one for title, columns in CHARTS.items() if (one := chart(found, title, columns))]
    header = list(dict.fromkeys(name for run in found for row in run["rows"] for name in row))
    rows = [[run["name"], *(row.get(name) for name in header)] for run in found for row in run["rows"]]
    tables: dict[str, Table] = {"epochs": (["run", *header], rows)}
    box = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
    mark = f"{MARK}\n{PROGRESS_MARK}"
    return write_files(page, "progress.html", tables, mark=mark, runs=found, charts=charts, box=box)


def about_run(run: Run, name: str) -> Facts:
    """Return the epochs of a run so far, for all its stages in order."""
    parts = stages(run.recipe)
    homes = [stage_folder(run.folder, k, part.name) for k, part in enumerate(parts[:-1], 1)] + [run.folder]
    rows = [row for home in homes for row in read_rows(home / "metrics.jsonl")]
    left = sum(part.train.epochs for part in parts) - len(rows)
    seconds = sum(row["seconds"] for row in rows) / max(len(rows), 1)
    return {
        "name": name,
        "method": run.recipe.method.name,
        "model": run.recipe.model.name,
        "epochs": len(rows) + left,
        "rows": [row | {"epoch": k} for k, row in enumerate(rows, 1)],
        "left": rounded(left * seconds) if left and rows else "",
    }


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a log, which may grow while it is read."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    rows = [json.loads(line) for line in lines]
    return [{key: value for key, value in (row | row["time"]).items() if key != "time"} for row in rows]


def round_up(value: float) -> float:
    """Return the next number whose quarters are short.

    >>> round_up(34), round_up(3.38), round_up(0.0025)
    (40.0, 4.0, 0.004)
    """
    unit = 10.0 ** math.floor(math.log10(value))
    return next(digit * unit for digit in (1, 2, 4, 6, 8, 10) if value <= digit * unit)


def chart(runs: Sequence[Facts], title: str, columns: dict[str, str]) -> Facts | None:
    """Return the lines of a chart as points, its ticks and labels; None if there is nothing to draw."""
    lines: list[Facts] = []
    for k, run in enumerate(runs):
        for place, (column, word) in enumerate(columns.items()):
            spots = [(row["epoch"], row[column]) for row in run["rows"] if row.get(column) is not None]
            if spots:
                words = " ".join([run["name"]] * (len(runs) > 1) + [word] * bool(word))
                lines.append({"run": k, "dash": DASHES[max(place - 1, 0)], "spots": spots, "label": words})
    if not lines:
        return None
    high = max(value for line in lines for _, value in line["spots"])
    most = max(run["epochs"] for run in runs)
    top = 1.0 if columns is VALIDATION or high <= 0 else round_up(high)

    def across(epoch: float) -> float:
        return float(round(LEFT + (RIGHT - LEFT) * (epoch - 1) / max(most - 1, 1), 1))

    def down(value: float) -> float:
        return float(round(BOTTOM - (BOTTOM - TOP) * value / top, 1))

    for line in lines:
        line["points"] = " ".join(f"{across(epoch)},{down(value)}" for epoch, value in line["spots"])
        line["x"], line["y"] = across(line["spots"][-1][0]), down(line["spots"][-1][1])
        line["last"] = line["spots"][-1][1]
        line["text_y"] = line["y"]
    for before, after in zip(ordered := sorted(lines, key=lambda line: line["y"]), ordered[1:], strict=False):
        after["text_y"] = max(after["y"], before["text_y"] + 15)  # labels do not overlap
    ticks = sorted({1, *(max(1, round(most * part / 5)) for part in range(1, 6))})
    scale, as_text = (100, "{:.0f}%") if columns is VALIDATION else (1, "{:.3g}")
    return {
        "title": title,
        "lines": lines,
        "x": [{"x": across(epoch), "text": str(epoch)} for epoch in ticks],
        "y": [{"y": down(top * part / 4), "text": as_text.format(scale * top * part / 4)} for part in range(5)],
    }
