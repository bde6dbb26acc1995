"""`make torture`: try every promise for as long as there is time, and write the table of docs/reliability.md.

    python -m faults.torture              for TORTURE_MINUTES (30), from where the log of the last call ends
    python -m faults.torture NAME NUMBER  one attempt again, to look at a failure

The log is .torture/log.jsonl, one row for each attempt. Delete it after a fix, to count from 0.
"""

import json
import os
import platform
import subprocess
import sys
import time
import traceback
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from faults.promises import PROMISES
from gpaco.system.files import append_jsonl, write_atomic

ROOT = Path(__file__).parents[2]
LOG = ROOT / ".torture" / "log.jsonl"
REPORT = ROOT / "docs" / "reliability.md"
MARKS = ("<!-- table of make torture -->", "<!-- end of the table -->")
FIRST = 1000  # numbers below are those of `make test`

Row = dict[str, Any]


def main() -> None:
    if sys.argv[1:]:
        name, number = sys.argv[1:]
        with TemporaryDirectory() as home:
            print(PROMISES[name].attempt(int(number), Path(home)), "tried, none broken")
        return
    end = time.monotonic() + 60 * float(os.environ.get("TORTURE_MINUTES", "30"))
    LOG.parent.mkdir(exist_ok=True)
    rows: list[Row] = [json.loads(line) for line in LOG.read_text().splitlines()] if LOG.exists() else []
    versions, failures = versions_here(), 0
    with TemporaryDirectory() as home:
        while time.monotonic() < end:
            name = min(PROMISES, key=lambda name: share(rows, name))
            number = FIRST + sum(row["promise"] == name for row in rows)
            began, tries, failure = time.monotonic(), 1, ""
            try:
                tries = PROMISES[name].attempt(number, Path(home))
            except Exception:
                failure, failures = traceback.format_exc()[-4000:], failures + 1
            date = datetime.now(UTC).strftime("%Y-%m-%d")
            row = {"promise": name, "number": number, "tries": tries, "failure": failure, "date": date}
            rows.append(row | {"versions": versions, "seconds": round(time.monotonic() - began, 1)})
            append_jsonl(LOG, rows[-1])
            print(f"{name} {number}: {f'FAILED, {failure}' if failure else f'{tries} tried'}", flush=True)
            write_report(rows)
    sys.exit(failures > 0)


def share(rows: list[Row], name: str) -> float:
    """How much of its goal a promise has got; an attempt without a try counts a little, so that it is not repeated."""
    return sum(row["tries"] + 0.1 for row in rows if row["promise"] == name) / PROMISES[name].goal


def versions_here() -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    packages = [f"{name} {version(name)}" for name in ("torch", "safetensors", "pillow")]
    return ", ".join([f"gpaco {commit.strip()}", *packages, f"Python {platform.python_version()}"])


def table(rows: list[Row]) -> str:
    """The lines of the table; dates and versions are those of the last attempt."""
    lines = ["| promise | tries | failures | date | versions |", "|---|--:|--:|---|---|"]
    for name, promise in PROMISES.items():
        own = [row for row in rows if row["promise"] == name]
        last = own[-1] if own else {"date": "", "versions": ""}
        tries, failures = sum(row["tries"] for row in own), sum(bool(row["failure"]) for row in own)
        lines.append(f"| {promise.text} | {tries:,} | {failures} | {last['date']} | {last['versions']} |")
    return "\n".join(lines)


def write_report(rows: list[Row]) -> None:
    before, _, rest = REPORT.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    write_atomic(REPORT, f"{before}{MARKS[0]}\n{table(rows)}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
