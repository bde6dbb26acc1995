"""Progress of a command: bars on a terminal, lines in a log or pipe."""

import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from gpaco.system.progress import Progress

REFRESH = 0.1  # seconds between two updates of a bar; no thread updates it, since forked data loaders would inherit it
BAR_AFTER, LINE_AFTER = 1, 5  # seconds before the first sign of work other than training: on a terminal, in a log
EVERY = 10  # seconds between two lines about it in a log

_open: list["Display"] = []


def display(as_json: bool = False, epochs: bool = True) -> "Display":
    """Return the display of a command: on standard output, or on standard error with --json."""
    stream = (sys.stderr if as_json else sys.stdout) if is_first_process() else io.StringIO()
    _open.append(Display(stream, epochs))
    return _open[-1]


def close() -> None:
    """Stop all bars, which restores the cursor of the terminal."""
    while _open:
        _open.pop().close()


def is_first_process() -> bool:
    """Return whether this process prints for all processes."""
    return os.environ.get("RANK", "0") == "0"


class Display:
    """Lines, bars and training progress of one command on one stream; calling it prints a line.

    Args:
        stream: where to print.
        epochs: whether a log gets a line per epoch.
    """

    def __init__(self, stream: TextIO, epochs: bool = True) -> None:
        from rich.console import Console

        self.stream, self.epochs = stream, epochs
        self.console = Console(file=stream, highlight=False)
        self.live = self.console.is_terminal and not self.console.is_dumb_terminal
        self.bar: Any = None  # at most one at a time
        self.drawn = 0.0
        self.title, self.validation = "training", ""
        self.began, self.first, self.epoch = 0.0, -1, -1  # of the current run: start time, epochs done then and now

    def __call__(self, line: str) -> None:
        if self.bar is not None:
            self.console.print(line, markup=False, emoji=False, soft_wrap=True)  # above the bar
        else:
            print(line, file=self.stream, flush=True)

    def close(self) -> None:
        """Stop the bar and leave it as it is."""
        if self.bar is not None:
            self.bar.refresh()
            self.bar.stop()
            self.bar = None

    @contextmanager
    def working(self, title: str) -> Iterator[Progress]:
        """Yield `progress(title)`, and close its bar at the end."""
        yield self.progress(title)
        self.close()

    def progress(self, title: str) -> Progress:
        """Return a callback (done, total) for work other than training. Short work is not shown."""
        began, last, first, since = time.monotonic(), 0.0, -1, 0.0
        patience, pause = (BAR_AFTER, REFRESH) if self.live else (LINE_AFTER, EVERY)

        def show(done: int, total: int) -> None:
            nonlocal last, first, since
            now = time.monotonic()
            if first < 0:  # what was done before the first report took an unknown time
                first, since = done, now
            if done >= total:
                if last and self.live:
                    self.close()
            elif done > first and now - began >= patience and now - last >= pause:
                text = f"{done:,} of {total:,}"
                if not self.live:
                    self(f"{title}: {text}, {_left(since, done - first, total - done)} left")
                else:
                    if not last:
                        self.close()
                    self._draw(title, done, total, text, transient=True)
                last = now

        return show

    def show(self, row: dict[str, Any]) -> None:
        """Show an event of training: the title of a run, a note, a step or an epoch."""
        if "title" in row:
            self.title, self.first = row["title"], -1
            if not self.live:
                self(self.title)
        elif "note" in row:
            self(row["note"])
        elif "steps" in row:
            self._show_step(row)
        else:
            self._show_epoch(row)

    def _show_step(self, row: dict[str, Any]) -> None:
        now = time.monotonic()
        if self.first < 0 or row["epoch"] < self.epoch:  # the first step of a run
            self.close()
            self.began, self.first, self.validation = now, row["epoch"], ""
        self.epoch = row["epoch"]
        if self.live and (self.bar is None or now - self.drawn >= REFRESH):
            done, total = row["epoch"] * row["steps"] + row["step"], row["epochs"] * row["steps"]
            text = f"epoch {row['epoch'] + 1}/{row['epochs']}  loss {row['loss']:.3f}{self.validation}"
            self._draw(self.title, done, total, text)

    def _show_epoch(self, row: dict[str, Any]) -> None:
        self.epoch, epochs, now = row["epoch"], row["epochs"], time.monotonic()
        self.validation = _validation(row, groups=not self.live)
        text = f"epoch {self.epoch}/{epochs}  loss {row['loss']:.3f}{self.validation}"
        if self.live and self.epoch == epochs:
            self._draw(self.title, epochs, epochs, text)
            self.close()
        elif not self.live and self.epochs and (self.epoch == epochs or now - self.drawn >= 1):  # not 60 lines a second
            self.drawn = now
            if self.first >= 0:  # not after resuming at the end of an epoch
                speed = row["time"]["images_per_second"]
                left = _left(self.began, self.epoch - self.first, epochs - self.epoch)
                text += f"  {speed:.{0 if speed >= 10 else 1}f} images/s  {left} left"
            self(text)

    def _draw(self, title: str, done: int, total: int, text: str, *, transient: bool = False) -> None:
        """Update the bar, or start one."""
        if self.bar is None:
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars
            from rich.table import Column

            start = TextColumn("{task.description}", markup=False), BarColumn(bar_width=20)
            left = TimeRemainingColumn(elapsed_when_finished=True)
            end = TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True))
            self.bar = Bars(*start, left, end, console=self.console, auto_refresh=False, transient=transient)
            self.bar.add_task(title, completed=done, total=total, text=text)
            self.bar.start()
        self.bar.update(self.bar.task_ids[0], completed=done, total=total, text=text, refresh=True)
        self.drawn = time.monotonic()


def _validation(row: dict[str, Any], *, groups: bool) -> str:
    for key, name in (("val_top1", "val"), ("val_miou", "val mIoU")):
        if key in row:
            values = (row[key], *(row[f"val_{group}"] for group in ("many", "medium", "few")))
            score, *each = ("none" if value is None else f"{100 * value:.1f}" for value in values)
            return f"  {name} {score}" + (f" (many/medium/few {' / '.join(each)})" if groups else "")
    return ""


def _left(began: float, done: int, remaining: int) -> str:
    """Return the time that the remaining work will take at the pace so far."""
    minutes, seconds = divmod(int((time.monotonic() - began) / max(done, 1) * remaining), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
