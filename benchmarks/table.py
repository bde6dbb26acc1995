"""Results as CSV files: one row for each cell, written as soon as it is known, with where it comes from."""

import csv
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from loss import machine


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
    """Add a row, with the machine, the versions and the commit."""
    whole = {**row, **origin()}
    new = not path.is_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(whole))
        if new:
            writer.writeheader()
        writer.writerow(whole)


def origin() -> dict[str, str]:
    """Return where a row comes from."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    packages: Sequence[str] = ("gpaco", "timm")
    versions = ", ".join([f"python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)])
    return {"machine": machine(), "versions": versions, "commit": commit}
