"""Callbacks for long-running work to report to the user."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

Say = Callable[[str], None]  # a line for the user
Progress = Callable[[int, int], None]  # (done, total) of some work
Bar = Callable[[str], AbstractContextManager[Progress]]  # shows the progress of some work under a title
Show = Callable[[dict[str, Any]], None]  # an event of training: a note, a step, an epoch


def quiet(said: object) -> None:
    """Report nothing."""


def no_progress(done: int, total: int) -> None:
    """Show no progress."""


def muted(say: Say) -> Say:
    """Return a callback that prints no line, but has the progress bars of `say`."""

    def silent(line: str) -> None:
        pass

    if hasattr(say, "progress"):
        silent.progress = say.progress  # type: ignore[attr-defined]
    return silent


def as_progress(say: Say, title: str) -> Progress:
    """Return a callback that reports progress every 10 s, for work that takes longer than 5 s.

    If `say` has its own progress bars, as `gpaco.cli.display.Display` does, the callback is one of those.
    """
    if hasattr(say, "progress"):
        progress: Progress = say.progress(title)
        return progress
    began, last = time.monotonic(), 0.0

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done < total and now - began >= 5 and now - last >= 10:
            last = now
            say(f"{title}: {done:,} of {total:,}")

    return tell
