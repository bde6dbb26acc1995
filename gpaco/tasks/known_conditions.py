"""Log of the conditions that a model has been tested under, so that a test resumes where it stopped."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpaco.data.corruption.published import Condition
from gpaco.system.files import append_jsonl, trim_jsonl, write_atomic
from gpaco.system.progress import Say
from gpaco.training.run import Run, select_checkpoint

Row = dict[str, Any]
Compute = Callable[[Sequence[Condition]], Iterator[tuple[Condition, Row]]]


def model_digest(run: Run, which: str) -> str:
    """SHA-256 of the manifest of a checkpoint, which has the SHA-256 of each of its files."""
    return hashlib.sha256((select_checkpoint(run, which, parts=[]).path / "MANIFEST.json").read_bytes()).hexdigest()


def write_result(folder: Path, stem: str, result: Row, say: Say) -> None:
    """Write `robustness.json`, or `robustness-STEM.json` for data other than the run's own."""
    path = folder / (f"robustness-{stem}.json" if stem else "robustness.json")
    write_atomic(path, json.dumps(result, indent=1))
    say(f"written: {path}")


@dataclass(frozen=True)
class KnownConditions:
    """Results that are known of one model for one set of arguments.

    Args:
        path: the log, a line of JSON for each condition.
        model: from `model_digest`.
        arguments: everything else that the result depends on, ready for JSON.
    """

    path: Path
    model: str
    arguments: Mapping[str, Any]

    def complete(
        self,
        conditions: Sequence[Condition],
        compute: Compute,
        say: Callable[[str], None],
        accept: Callable[[Row], bool] = lambda row: True,
    ) -> dict[Condition, Row]:
        """The row of each condition: from the log if it is there and accepted, else computed and logged."""
        key = json.loads(json.dumps({"model": self.model, "arguments": self.arguments}))
        logged = [row for row in trim_jsonl(self.path, lambda row: "model" in row) if key.items() <= row.items()]
        known = {(row["condition"], row["severity"]): row for row in logged if accept(row)}
        rows = {condition: known[condition] for condition in conditions if condition in known}
        if rows and len(rows) < len(conditions):
            say(f"{len(rows)} conditions are already in the log")
        for condition, row in compute([condition for condition in conditions if condition not in rows]):
            append_jsonl(self.path, key | {"condition": condition[0], "severity": condition[1]} | row)
            rows[condition] = row
        return {condition: rows[condition] for condition in conditions}
