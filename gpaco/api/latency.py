"""latency(): milliseconds per image of one or more runs, with their parameters and operations."""

import json
from pathlib import Path
from typing import Any

from gpaco.api.load import load
from gpaco.system.distributed import choose_device
from gpaco.system.files import write_atomic
from gpaco.tasks.classification.predictor import Predictor
from gpaco.tasks.cost import BATCHES, FILE, in_words, measure, place, read_measured
from gpaco.tasks.segmentation.card import fitted_size
from gpaco.training.run import Run, Runs, as_runs


def latency(runs: Runs, *, device: str | None = None, seconds: float = 2.0) -> list[dict[str, Any]]:
    """Measure each run and return a row for it, which is also stored in the run (latency.json).

    A row has milliseconds per image at a batch of 1 and of 64 (`batches`: median, low and high quartile; None for a
    batch of too many pixels), `parameters` and `flops` of one image, without layers that are only for training, and
    `device`. Classifiers take images of their own size, segmenters of the size that a typical image of their data is
    resized to.

    Args:
        seconds: time for each batch size; at least five repetitions are measured.

    >>> latency(["runs/first", "runs/second"])  # doctest: +SKIP
    """
    return [_measured(run, device, seconds) for run in as_runs(runs)]


def stored(run: Run, device: str | None = None) -> dict[str, Any] | None:
    """Return what was measured before on this device with as many threads, or None."""
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
    places = ", ".join(sorted({in_words(row) for row in rows}))
    times = [row["batches"]["64"] or row["batches"]["1"] for row in rows]
    spread = max(time["high"] / time["low"] for time in times)
    lines.append(f"Medians on {places}; quartiles differ by up to {spread:.2f} times.")
    if any(row["batches"]["64"] is None for row in rows):
        lines.append("none: 64 images of this size are too many for the memory of most machines.")
    return "\n".join(lines)


def _measured(run: Run, device: str | None, seconds: float) -> dict[str, Any]:
    model = load(run, device=choose_device(device))
    if isinstance(model, Predictor):
        height = width = model.card.view.size
    else:
        height, width = fitted_size(model.card)
    row = {"run": str(run.folder), "model": model.card.model, **measure(model, height, width, seconds=seconds)}
    write_atomic(Path(run.folder) / FILE, json.dumps(row, indent=1))
    return row
