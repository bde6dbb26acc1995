"""latency(): milliseconds per image of one or more runs, with their parameters and operations."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpaco.api.load import load
from gpaco.errors import EnvironmentProblem
from gpaco.system.distributed import choose_device
from gpaco.system.files import write_atomic
from gpaco.system.progress import Say, quiet
from gpaco.tasks.classification.predictor import Predictor
from gpaco.tasks.cost import BATCHES, FILE, cost, format_device, measure, place, read_measured
from gpaco.tasks.segmentation.card import fitted_size
from gpaco.training.run import Run, Runs, as_runs


def latency(
    runs: Runs,
    *,
    device: str | None = None,
    seconds: float = 2.0,
    say: Say = quiet,
) -> list[dict[str, Any]]:
    """Measure each run and return a row for it, which is also stored in the run (latency.json).

    A row has milliseconds per image in batches of 1 and 64 (`batches`: median, low and high quartile; None for a batch
    with too many pixels), `parameters` and `flops` per image, without layers used only in training, and `device`.
    Classifiers are measured at their input size, segmenters at the size that a typical image of their data is resized
    to. Runs with the same network get the same times.

    Args:
        seconds: how long to measure each batch size; there are at least five repetitions.

    >>> [row["parameters"] for row in latency(["runs/first", "runs/second"], seconds=0.1)]
    [75290, 75290]
    """
    rows: list[dict[str, Any]] = []
    for run in as_runs(runs):
        rows.append(measure_run(run, device, seconds, rows, say))
    return rows


def stored(run: Run, device: str | None = None) -> dict[str, Any] | None:
    """Return the stored measurement if it was made on this device with this number of threads, else None."""
    row, here = read_measured(run.folder), place(choose_device(device))
    return row if row is not None and {key: row[key] for key in here} == here else None


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as text."""
    wide = max(len(row["run"]) for row in rows)
    lines = [f"{'run':<{wide}}  ms per image: alone      in 64  parameters      FLOPs"]
    for row in rows:
        alone, many = (row["batches"][str(batch)] for batch in BATCHES)
        together = "none" if many is None else f"{many['median']:.2f}"
        lines.append(
            f"{row['run']:<{wide}}  {alone['median']:>19.2f} {together:>10}  {row['parameters']:>10,}  "
            f"{row['flops']:>9.2e}"
        )
    places = ", ".join(sorted({format_device(row) for row in rows}))
    times = [row["batches"]["64"] or row["batches"]["1"] for row in rows]
    spread = max(time["high"] / time["low"] for time in times)
    lines.append(f"Medians on {places}; quartiles differ by a factor of up to {spread:.2f}.")
    if any(row["batches"]["64"] is None for row in rows):
        lines.append("none: 64 images of this size need more memory than most machines have.")
    return "\n".join(lines)


def measure_run(
    run: Run, device: str | None, seconds: float, known: Sequence[dict[str, Any]], say: Say
) -> dict[str, Any]:
    """Measure a run, unless the row of a run with the same network is known."""
    model = load(run, device=choose_device(device))
    if isinstance(model, Predictor):
        height = width = model.card.view.size
    else:
        height, width = fitted_size(model.card)
    parameters, flops = cost(model, height, width)
    network = {"model": model.card.model, "parameters": parameters, "flops": flops}
    same = next((row for row in known if row | network == row), None)
    if same is None:
        say(f"measuring milliseconds per image of {run.folder}")
        same = network | measure(model, height, width, seconds=seconds)
    row = same | {"run": str(run.folder)}
    try:
        write_atomic(Path(run.folder) / FILE, json.dumps(row, indent=1))
    except EnvironmentProblem as problem:  # a folder that may only be read
        say(f"not stored in the run: {problem.cause}")
    return row
