"""What is shown while a command works: lines in a log, bars on a terminal."""

import io
import re

import pytest

from gpaco.cli.display import Display
from gpaco.system.progress import told


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def train(display: Display, clock: list[float], first: int, epochs: int) -> None:
    """Ten seconds an epoch of two steps."""
    for epoch in range(first, epochs):
        for step in (1, 2):
            clock[0] += 5
            display.show({"epoch": epoch, "epochs": epochs, "step": step, "steps": 2, "loss": 1.5, "lr": 0.1})
        figures = {"val_top1": 0.5, "val_many": 0.75, "val_medium": 0.5, "val_few": None}
        display.show({"epoch": epoch + 1, "epochs": epochs, "loss": 1.5, "time": {"images_per_second": 100}} | figures)


def test_a_log_has_a_line_for_each_epoch_with_the_time_left_of_the_run_at_hand(clock: list[float]) -> None:
    stream = io.StringIO()
    display = Display(stream)
    for resumed in (0, 6):  # a run from its beginning, then one that was at epoch 6 already
        stream.seek(0)
        stream.truncate()
        display.show({"title": "ce, seed 0"})
        train(display, clock, resumed, 8)
        title, *lines = stream.getvalue().splitlines()
        assert title == "ce, seed 0"
        assert len(lines) == 8 - resumed
        figures = "validation 50.0 (many/medium/few 75.0 / 50.0 / none)"
        assert lines[0].startswith(f"epoch {resumed + 1}/8  loss 1.500  {figures}  100 images/s")
        left = re.search(r"(\d):(\d\d) left$", lines[0])
        assert left
        assert abs(60 * int(left[1]) + int(left[2]) - 10 * (7 - resumed)) <= 5 * (7 - resumed)
        assert lines[-1].endswith("0:00 left")


def test_a_comparison_may_do_without_lines_for_epochs(clock: list[float]) -> None:
    stream = io.StringIO()
    display = Display(stream, epochs=False)
    display.show({"title": "ce, seed 0"})
    train(display, clock, 0, 8)
    assert stream.getvalue() == "ce, seed 0\n"


def test_a_terminal_has_one_bar_for_a_run_which_stays(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    display = Display(stream)
    display.show({"title": "ce, seed 0"})
    train(display, clock, 0, 3)
    display("done")
    last = stream.getvalue().split("\r")[-1]
    assert re.search(r"ce, seed 0 .*epoch 3/3  loss 1\.500  validation 50\.0", last)
    assert last.endswith("\x1b[?25hdone\n"), "the cursor is back"


def test_other_work_is_shown_after_five_seconds(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    said: list[str] = []
    log, terminal = io.StringIO(), Terminal()
    callbacks = [told(say, "reading images") for say in (said.append, Display(log), Display(terminal))]
    for done in range(30):
        clock[0] += 1
        for progress in callbacks:
            progress(done + 1, 30)
        assert bool(said) == bool(log.getvalue()) == bool(terminal.getvalue()) == (done >= 4)
    assert said == ["reading images: 5 of 30", "reading images: 15 of 30", "reading images: 25 of 30"]
    assert [line.split(",")[0] for line in log.getvalue().splitlines()] == said
    assert terminal.getvalue().endswith("\x1b[2K"), "the bar is gone"


def test_work_that_is_done_at_its_first_report_is_not_shown(clock: list[float]) -> None:
    said: list[str] = []
    log = io.StringIO()
    for progress in (told(said.append, "predicting"), Display(log).progress("predicting")):
        clock[0] += 6
        progress(8, 8)
    assert (said, log.getvalue()) == ([], "")
