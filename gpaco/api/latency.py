"""latency(): milliseconds per image of one or more runs, with their parameters and operations."""

import json
from pathlib import Path
from typing import Any

from gpaco.api.load import load
from gpaco.system.distributed import choose_device
from gpaco.system.files import write_atomic
from gpaco.tasks.classification.predictor import Predictor
from gpaco.tasks.latency import measure
from gpaco.training.run import Run, Runs, as_runs

FILE = "latency.json"  # in a run folder


def latency(runs: Runs, *, device: str | None = None, seconds: float = 2.0) -> list[dict[str, Any]]:
    """Measure each run and return a row for it, which is also stored in the run (latency.json).

    A row has milliseconds per image at a batch of 1 and of 64 (`batches`: median, low and high quartile), `parameters`,
    `flops` of one image, and `device`. Classifiers take images of their own size, segmenters of the size of their data.

    Args:
        seconds: time for each batch size; at least five repetitions are measured.

    >>> latency(["runs/first", "runs/second"])  # doctest: +SKIP
    """
    return [_measured(run, device, seconds) for run in as_runs(runs)]


def stored(run: Run) -> dict[str, Any] | None:
    """Return what was measured before, or None."""
    path = run.folder / FILE
    return dict(json.loads(path.read_text())) if path.is_file() else None


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as text."""
    wide = max(len(row["run"]) for row in rows)
    lines = [f"{'run':<{wide}}  ms per image: alone      in 64  parameters      FLOPs"]
    for row in rows:
        alone, many = (row["batches"][batch] for batch in ("1", "64"))
        lines.append(
            f"{row['run']:<{wide}}  {alone['median']:>19.2f} {many['median']:>10.2f}  {row['parameters']:>10,}  "
            f"{row['flops']:>9.2e}"
        )
    first = rows[0]
    where = f"{first['device']}, {first['threads']} threads" if first["device"] == "cpu" else first["device"]
    spread = max(row["batches"]["64"]["high"] / row["batches"]["64"]["low"] for row in rows)
    return "\n".join(
        [*lines, f"Medians on {where}; the quartiles of a batch of 64 differ by up to {spread:.2f} times."]
    )


def _measured(run: Run, device: str | None, seconds: float) -> dict[str, Any]:
    model = load(run, device=choose_device(device))
    if isinstance(model, Predictor):
        height = width = model.card.view.size
    else:
        height, width = model.card.image_size
    row = {"run": str(run.folder), "model": model.card.model, **measure(model, height, width, seconds=seconds)}
    write_atomic(Path(run.folder) / FILE, json.dumps(row, indent=1))
    return row
