"""Atomic writing of files, and logs in JSON lines."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpaco.errors import UserError
from gpaco.system.faults import explained


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file atomically: even after a crash, it has either the old content or the new."""
    work = path.with_name(f".{path.name}.writing")
    with explained(f"cannot write {path}"):
        try:
            write(work, content.encode() if isinstance(content, str) else content)
            os.replace(work, path)
        except BaseException:
            work.unlink(missing_ok=True)
            raise
        sync(path.parent)


def append_jsonl(path: Path, row: Mapping[str, Any]) -> None:
    """Append one line of JSON to a log and sync it to disk: either the whole line or nothing is written."""
    line = json.dumps(row, allow_nan=False).encode() + b"\n"
    with explained(f"cannot write {path}"), path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except BaseException:
            os.ftruncate(file.fileno(), before)
            raise
        if before == 0:
            sync(path.parent)


def trim_jsonl(path: Path, keep: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Remove all rows from a log that `keep` does not accept, and return the others.

    An incomplete last line, from a process that died while writing it, is removed too.
    """
    if not path.exists():
        return []
    content = path.read_bytes()
    lines, rows = [], []
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
            wanted = keep(row)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(
                f"line {number} of {path} is not a row of this log", "correct or delete that line"
            ) from error
        if wanted:
            lines.append(line + b"\n")
            rows.append(row)
    if b"".join(lines) != content:
        write_atomic(path, b"".join(lines))
    return rows


def write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
