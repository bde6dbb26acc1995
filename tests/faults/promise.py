"""A promise, and a place to break it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Promise:
    """What is promised and how it is tried.

    Args:
        text: the promise, as docs/reliability.md states it.
        attempt: called with a number, which decides on the fault, and a folder that all attempts share. Returns how
            many faults were tried. An exception says how the promise was broken.
        attempts: number of calls in `make test`.
        more: numbers of further calls in `make test-all`.
        goal: number of faults that `make torture` tries.
    """

    text: str
    attempt: Callable[[int, Path], int]
    attempts: int
    goal: int
    more: range = range(0)


@contextmanager
def scratch(home: Path, number: int) -> Iterator[Path]:
    """A new folder for one attempt. It stays if the promise is broken, for a closer look."""
    folder = home / f"attempt-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder)
