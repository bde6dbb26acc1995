"""Results as CSV files: one row for each cell, written as soon as it is known, with where it comes from."""

import csv
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from filelock import FileLock

from gpaco.api.compare import interval


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file; none if it does not exist."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def has(path: Path, key: Mapping[str, Any]) -> bool:
    """Whether the file has a row with these values."""
    return any(all(row.get(name) == str(value) for name, value in key.items()) for row in read(path))


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row, with the machine, the versions and the commit. Several processes may add rows at the same time."""
    with FileLock(Path(tempfile.gettempdir()) / f"{path.name}.lock"):
        rewrite(path, [*read(path), {**row, **origin()}])


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write all rows of a file, with the machine, the versions and the commit."""
    where = origin()
    rewrite(path, [{**row, **where} for row in rows])


def rewrite(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = dict.fromkeys(name for row in rows for name in row)
    with path.with_suffix(".new").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(names), restval="")
        writer.writeheader()
        writer.writerows(rows)
    path.with_suffix(".new").replace(path)


def spread(values: Sequence[str]) -> str:
    """Return the mean of percentages, and their standard deviation if there are several."""
    numbers = [100 * float(value) for value in values if value]
    if not numbers:
        return "-"
    return f"{mean(numbers):.1f}" + (f" ± {stdev(numbers):.1f}" if len(numbers) > 1 else "")


def with_interval(values: Sequence[float | None], sign: str = "", none: str = "-") -> str:
    """Return the mean of shares in percent, and half of its 95% interval."""
    found = interval(values)
    if found["mean"] is None:
        return none
    half = "" if found["interval"] is None else f" ± {100 * found['interval']:.1f}"
    return f"{100 * found['mean']:{sign}.1f}{half}"


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two lines of a page. Several processes may do so at the same time."""
    with FileLock(Path(tempfile.gettempdir()) / f"{page.name}.lock"):
        before, rest = page.read_text(encoding="utf-8").split(f"{begin}\n")
        page.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")


def origin() -> dict[str, str]:
    """Return where a row comes from."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude", "*"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    packages = [f"{name} {version(name)}" for name in ("gpaco", "timm")]
    versions = ", ".join([f"python {platform.python_version()}", *packages])
    return {"machine": machine(), "versions": versions, "commit": commit}


def machine() -> str:
    """Return the processor, the threads and the version of torch."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return f"{model}, {torch.get_num_threads()} threads, torch {torch.__version__}, {platform.system()}"
