"""Log of the conditions that a model has been tested under, so that a test resumes where it stopped."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpaco.data.corruption.published import Condition
from gpaco.system.files import append_jsonl, trim_jsonl, write_atomic
from gpaco.tasks.robustness_settings import RobustnessSettings
from gpaco.training.run import Run, select_checkpoint

Row = dict[str, Any]
Compute = Callable[[Sequence[Condition]], Iterator[tuple[Condition, Row]]]


def write_result(settings: RobustnessSettings, stem: str, result: Row) -> None:
    """Write `robustness.json`, or `robustness-STEM.json` for data other than the run's own."""
    path = settings.out / (f"robustness-{stem}.json" if stem else "robustness.json")
    write_atomic(path, json.dumps(result, indent=1))
    settings.say(f"written: {path}")


def complete(
    settings: RobustnessSettings,
    run: Run,
    arguments: Row,
    conditions: Sequence[Condition],
    compute: Compute,
    accept: Callable[[Row], bool] = lambda row: True,
) -> dict[Condition, Row]:
    """The row of each condition: from the log if it is there and accepted, else computed and logged.

    `arguments` are everything that a row depends on beside the model of the run, ready for JSON.
    """
    path = settings.out / "robustness.jsonl"
    manifest = select_checkpoint(run, settings.which, parts=[]).path / "MANIFEST.json"  # has the SHA-256 of each file
    model = hashlib.sha256(manifest.read_bytes()).hexdigest()
    key = json.loads(json.dumps({"model": model, "arguments": arguments}))
    logged = [row for row in trim_jsonl(path, lambda row: "model" in row) if key.items() <= row.items()]
    known = {(row["condition"], row["severity"]): row for row in logged if accept(row)}
    rows = {condition: known[condition] for condition in conditions if condition in known}
    if rows and len(rows) < len(conditions):
        settings.say(f"{len(rows)} conditions are already in the log")
    for condition, row in compute([condition for condition in conditions if condition not in rows]):
        append_jsonl(path, key | {"condition": condition[0], "severity": condition[1]} | row)
        rows[condition] = row
    return {condition: rows[condition] for condition in conditions}
