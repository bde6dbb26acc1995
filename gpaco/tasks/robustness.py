"""Shared by the robustness tests of both tasks: settings, and a log from which a test resumes."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpaco.data.corruption.distortions import frost_folder
from gpaco.data.corruption.published import Condition
from gpaco.system import distributed
from gpaco.system.files import append_jsonl, trim_jsonl, write_atomic
from gpaco.system.outputs import mark_folder
from gpaco.system.progress import Bar, Say
from gpaco.training.run import Run, is_run, select_checkpoint

MARK = ".gpaco-robustness"
Row = dict[str, Any]
Compute = Callable[[Sequence[Condition]], Iterator[tuple[Condition, Row]]]


@dataclass(frozen=True)
class RobustnessSettings:
    """The arguments of `gpaco.robustness`, checked and parsed."""

    run: Run
    data: Path | str | None
    baseline: Path | str | None
    clean: Path | str | None
    corruptions: str | None
    severities: tuple[int, ...]
    subset: int | None
    seed: int
    constants: str | None
    preprocessing: str
    restrict: bool
    prior: str | None
    unbiased: bool
    on_bad_image: str
    workers: int | None
    device: torch.device
    out: Path
    say: Say
    bar: Bar

    @property
    def source(self) -> str:
        """Where the images come from."""
        return str(self.data) if self.data is not None else self.run.recipe.data.path


def place_of(data: str) -> str:
    """Return the absolute path of data, the same from every folder; a word such as digits stays as it is."""
    return str(Path(data).resolve()) if Path(data).exists() else data


def begin_output(settings: RobustnessSettings) -> None:
    """Create the folder for the results, with a mark unless it is a run folder."""
    if not is_run(settings.out):
        mark_folder(settings.out, MARK)


def check_frost(conditions: Iterable[Condition]) -> None:
    """Raise an error if frost is among the conditions but its photographs are not installed."""
    if any(name == "frost" for name, _ in conditions):
        frost_folder()


def complete(
    settings: RobustnessSettings,
    run: Run,
    arguments: Row,
    conditions: Sequence[Condition],
    compute: Compute,
    accept: Callable[[Row], bool] = lambda row: True,
) -> dict[Condition, Row]:
    """Return a row for each condition: from the log if it is there and accepted, else computed and logged.

    `arguments` has everything that a row depends on besides the model of the run, ready for JSON.
    """
    path = settings.out / "robustness.jsonl"
    manifest = select_checkpoint(run).path / "MANIFEST.json"  # has the SHA-256 of each file
    model = hashlib.sha256(manifest.read_bytes()).hexdigest()
    key = json.loads(json.dumps({"model": model, "arguments": arguments}))
    first = distributed.rank() == 0  # reads and writes the log
    every = trim_jsonl(path, lambda row: "model" in row) if first else []
    logged = [row for row in distributed.collect(every) if key.items() <= row.items()]
    known = {(row["condition"], row["severity"]): row for row in logged if accept(row)}
    rows = {condition: known[condition] for condition in conditions if condition in known}
    if rows and len(rows) < len(conditions):
        settings.say(f"{len(rows)} conditions are already in the log")
    for condition, row in compute([condition for condition in conditions if condition not in rows]):
        if first:
            append_jsonl(path, key | {"condition": condition[0], "severity": condition[1]} | row)
        rows[condition] = row
    return {condition: rows[condition] for condition in conditions}


def write_result(settings: RobustnessSettings, name: str, result: Row) -> None:
    """Write `robustness.json`, or `robustness-NAME.json` for data other than the run's own."""
    path = settings.out / (f"robustness-{name}.json" if name else "robustness.json")
    if distributed.rank():
        return
    write_atomic(path, json.dumps(result, indent=1))
    settings.say(f"written: {path}")
