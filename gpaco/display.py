"""Progress: one line that changes on a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO


def display(stream: TextIO) -> Callable[[dict[str, Any]], None]:
    """A function that is told of steps and epochs and shows where training is."""
    live = stream.isatty()
    began = time.monotonic()
    shown = 0.0
    epochs = 0
    first = current = -1  # epochs done before this run or stage began here, and now

    def show(row: dict[str, Any]) -> None:
        nonlocal began, shown, epochs, first, current
        if "note" in row:
            print(row["note"], file=stream, flush=True)
            return
        if "doing" in row:  # before training, if it takes a while
            finished, now = row["done"] == row["total"], time.monotonic()
            if row["seconds"] >= 5 and (finished or now - shown > (0.2 if live else 10)):
                shown = now
                text = f"{row['doing']}: {row['done']:,} of {row['total']:,}, {row['images_per_second']:.0f} images/s"
                text += "" if finished else f", {_clock(row['seconds_left'])} left"
                start, end = ("\r\x1b[K", "\n" if finished else "") if live else ("", "\n")
                print(start + text, end=end, file=stream, flush=True)
            return
        if "steps" in row:  # a step
            now = time.monotonic()
            if first < 0 or row["epoch"] < current:
                began, first, epochs = now, row["epoch"], 0
            current = row["epoch"]
            if live and now - shown > 0.2:
                shown = now
                where = f"epoch {row['epoch'] + 1}{f'/{epochs}' if epochs else ''}, step {row['step']}/{row['steps']}"
                print(f"\r\x1b[K{where}  loss {row['loss']:.3f}", end="", file=stream, flush=True)
            return
        epochs, current = row["epochs"], row["epoch"]
        passed = time.monotonic() - began
        left = passed / max(row["epoch"] - first, 1) * (epochs - row["epoch"])
        parts = [f"epoch {row['epoch']}/{epochs}", f"loss {row['loss']:.3f}"]
        if "val_top1" in row:
            groups = " / ".join(_percent(row[f"val_{key}"]) for key in ("many", "medium", "few"))
            parts.append(f"validation {_percent(row['val_top1'])} (many/medium/few {groups})")
        if "val_miou" in row:
            groups = " / ".join(_percent(row[f"val_{key}"]) for key in ("many", "medium", "few"))
            parts.append(f"validation mIoU {_percent(row['val_miou'])} (many/medium/few {groups})")
        speed = row["time"]["images_per_second"]
        parts += [f"{speed:.{0 if speed >= 10 else 1}f} images/s", f"{_clock(left)} left"]
        start = "\r\x1b[K" if live else ""
        print(start + "  ".join(parts), file=stream, flush=True)

    return show


def told(say: Callable[[str], None], title: str) -> Callable[[int, int], None]:
    """A function (done, total) that says where it is every ten seconds, from 5 s on."""
    last = time.monotonic() - 5

    def show(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= 10:
            last = time.monotonic()
            say(f"{title}: {done:,} of {total:,}")

    return show


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A function (done, total) that shows a bar on a terminal, and a line every ten seconds in a log, from 5 s on."""
    began = last = time.monotonic()
    live = sys.stderr.isatty()

    def show(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - began < 5 or now - last < (0.2 if live else 10):
            return
        last = now
        left = (now - began) / max(done, 1) * (total - done)
        text = f"{title}: {done:,} of {total:,}, {_clock(left)} left"
        print(f"\r\x1b[K{text}" if live else text, end="" if live else "\n", file=sys.stderr, flush=True)

    yield show
    if live and last != began:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
