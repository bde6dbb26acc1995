"""What is shown while a command works: lines in a log, bars on a terminal."""

import io
import re

import pytest

from gpaco.cli.display import Display
from gpaco.system.progress import as_progress


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
        figures = "val 50.0 (many/medium/few 75.0 / 50.0 / none)"
        assert lines[0].startswith(f"epoch {resumed + 1}/8  loss 1.500  {figures}  100 images/s")
        left = re.search(r"(\d):(\d\d) left$", lines[0])
        assert left
        assert abs(60 * int(left[1]) + int(left[2]) - 10 * (7 - resumed)) <= 5 * (7 - resumed)
        assert lines[-1].endswith("0:00 left")


def test_an_epoch_that_was_done_before_resuming_has_neither_speed_nor_time_left(clock: list[float]) -> None:
    stream = io.StringIO()
    display = Display(stream)
    display.show({"title": "ce, seed 0"})
    display.show({"epoch": 6, "epochs": 8, "loss": 1.5, "time": {"images_per_second": 0.0}})
    assert stream.getvalue().splitlines()[1:] == ["epoch 6/8  loss 1.500"]


def test_a_log_has_at_most_one_line_a_second_and_always_that_of_the_last_epoch(clock: list[float]) -> None:
    stream = io.StringIO()
    display = Display(stream)
    for epoch in range(60):
        clock[0] += 0.05
        display.show({"epoch": epoch, "epochs": 60, "step": 1, "steps": 1, "loss": 1.5, "lr": 0.1})
        display.show({"epoch": epoch + 1, "epochs": 60, "loss": 1.5, "time": {"images_per_second": 100}})
    lines = stream.getvalue().splitlines()
    assert 3 <= len(lines) <= 4
    assert lines[-1].startswith("epoch 60/60")


def test_a_comparison_may_do_without_lines_for_epochs(clock: list[float]) -> None:
    stream = io.StringIO()
    display = Display(stream, epochs=False)
    display.show({"title": "ce, seed 0"})
    train(display, clock, 0, 8)
    assert stream.getvalue() == "ce, seed 0\n"


def test_a_terminal_has_one_bar_for_a_run_which_stays(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    display = Display(stream)
    display.show({"title": "ce, seed 0"})
    train(display, clock, 0, 3)
    display("done")
    last = stream.getvalue().split("\r")[-1]
    assert re.search(r"ce, seed 0 .*epoch 3/3  loss 1\.500  val 50\.0", last)
    assert last.endswith("\x1b[?25hdone\n"), "the cursor is back"


def test_other_work_is_shown_after_five_seconds_in_a_log_and_after_one_on_a_terminal(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    said: list[str] = []
    log, terminal = io.StringIO(), Terminal()
    callbacks = [as_progress(say, "reading images") for say in (said.append, Display(log), Display(terminal))]
    for done in range(30):
        clock[0] += 1
        for progress in callbacks:
            progress(done + 1, 30)
        assert bool(said) == bool(log.getvalue()) == (done >= 4)
        assert bool(terminal.getvalue()) == (done >= 1)
    assert said == ["reading images: 5 of 30", "reading images: 15 of 30", "reading images: 25 of 30"]
    assert [line.split(",")[0] for line in log.getvalue().splitlines()] == said
    assert terminal.getvalue().endswith("\x1b[2K"), "the bar is gone"


def test_the_time_left_is_that_of_the_work_since_the_first_report(clock: list[float]) -> None:
    log = io.StringIO()
    progress = Display(log).progress("tuning, seconds")
    for seconds in (14, 10):  # nothing is reported for 14 seconds of a budget of 300
        clock[0] += seconds
        progress(int(clock[0]) - 1000, 300)
    assert log.getvalue() == "tuning, seconds: 24 of 300, 4:36 left\n"


def test_work_that_is_done_at_its_first_report_is_not_shown(clock: list[float]) -> None:
    said: list[str] = []
    log = io.StringIO()
    for progress in (as_progress(said.append, "predicting"), Display(log).progress("predicting")):
        clock[0] += 6
        progress(8, 8)
    assert (said, log.getvalue()) == ([], "")
