"""What a command shows while it works: bars on a terminal, lines in a log or pipe."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from gpaco.system.progress import Progress

REFRESH = 0.1  # seconds between two looks of a bar; there is no thread for it, which forked loaders would inherit
PATIENCE, EVERY = 5, 10  # seconds before the first sign of other work than training, and between two lines in a log


class Display:
    """Lines, bars and training of one command on one stream; called with a line, it prints that.

    Args:
        stream: where to print.
        epochs: False prints no line for each epoch in a log.
    """

    def __init__(self, stream: TextIO, epochs: bool = True) -> None:
        self.stream, self.epochs = stream, epochs
        self.console = Console(file=stream, highlight=False)
        self.live = self.console.is_terminal and not self.console.is_dumb_terminal
        self.bar: Bars | None = None  # there is one at a time
        self.drawn = 0.0
        self.title, self.validation = "training", ""
        self.began, self.first, self.epoch = 0.0, -1, -1  # of the run at hand: time, epochs done by then and by now
        self.work: tuple[str, Progress] = ("", self.progress(""))

    def __call__(self, line: str) -> None:
        if self.bar is not None:
            self.console.print(Text(line), soft_wrap=True)  # above the bar
        else:
            print(line, file=self.stream, flush=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self.bar is not None:
            self.bar.refresh()
            self.bar.stop()
            self.bar = None

    # Work of which only the number of its pieces is known

    def progress(self, title: str) -> Progress:
        """Return a callback (done, total) for some work; nothing is shown of what takes less than 5 s."""
        began, last, first = time.monotonic(), 0.0, -1

        def show(done: int, total: int) -> None:
            nonlocal last, first
            now = time.monotonic()
            first = done if first < 0 else first
            if done >= total and last and self.live:
                self.close()
            elif now - began >= PATIENCE and now - last >= (REFRESH if self.live else EVERY):
                if self.live:
                    self._draw(title, done, total, f"{done:,} of {total:,}", transient=True, new=not last)
                else:
                    left = _clock((now - began) / max(done - first, 1) * (total - done))
                    self(f"{title}: {done:,} of {total:,}, {left} left")
                last = now

        return show

    @contextmanager
    def working(self, title: str) -> Iterator[Progress]:
        """`progress` for the work inside."""
        yield self.progress(title)
        self.close()

    # Training

    def show(self, row: dict[str, Any]) -> None:
        """Show what training tells: the title of a run, a note, how far work before it is, a step, an epoch."""
        if "title" in row:
            self.title, self.first = row["title"], -1
            if not self.live:
                self(self.title)
        elif "note" in row:
            self(row["note"])
        elif "doing" in row:
            if self.work[0] != row["doing"]:
                self.work = row["doing"], self.progress(row["doing"])
            self.work[1](row["done"], row["total"])
        elif "steps" in row:
            self._step(row)
        else:
            self._epoch(row)

    def _step(self, row: dict[str, Any]) -> None:
        now, new = time.monotonic(), self.first < 0 or row["epoch"] < self.epoch
        if new:
            self.began, self.first, self.validation = now, row["epoch"], ""
        self.epoch = row["epoch"]
        if self.live and (new or now - self.drawn >= REFRESH):
            done, total = row["epoch"] * row["steps"] + row["step"], row["epochs"] * row["steps"]
            text = f"epoch {row['epoch'] + 1}/{row['epochs']}  loss {row['loss']:.3f}{self.validation}"
            self._draw(self.title, done, total, text, new=new)

    def _epoch(self, row: dict[str, Any]) -> None:
        self.epoch, epochs = row["epoch"], row["epochs"]
        self.validation = _validation(row)
        text = f"epoch {self.epoch}/{epochs}  loss {row['loss']:.3f}{self.validation}"
        if self.live:
            if self.epoch == epochs:
                self._draw(self.title, epochs, epochs, text)
                self.close()
        elif self.epochs:
            speed = row["time"]["images_per_second"]
            passed = time.monotonic() - self.began
            left = _clock(passed / max(self.epoch - self.first, 1) * (epochs - self.epoch))
            self(f"{text}  {speed:.{0 if speed >= 10 else 1}f} images/s  {left} left")

    def _draw(
        self, title: str, done: int, total: int, text: str, *, transient: bool = False, new: bool = False
    ) -> None:
        """Draw the bar; a new one leaves the one before it as it is."""
        if new or self.bar is None:
            self.close()
            self.bar = Bars(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TimeRemainingColumn(elapsed_when_finished=True),
                TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True)),
                console=self.console,
                auto_refresh=False,
                transient=transient,
            )
            self.bar.add_task(title, completed=done, total=total, text=text)
            self.bar.start()
        self.bar.update(self.bar.task_ids[0], completed=done, total=total, text=text, refresh=True)
        self.drawn = time.monotonic()


def _validation(row: dict[str, Any]) -> str:
    for key, name in (("val_top1", "validation"), ("val_miou", "validation mIoU")):
        if key in row:
            groups = " / ".join(_percent(row[f"val_{group}"]) for group in ("many", "medium", "few"))
            return f"  {name} {_percent(row[key])} (many/medium/few {groups})"
    return ""


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
