"""Graceful stopping: a signal sets a flag that the loop checks between steps. A second signal stops at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CAUGHT = [signal.SIGINT, signal.SIGTERM]
if hasattr(signal, "SIGUSR1"):  # not on Windows
    CAUGHT.append(signal.SIGUSR1)


class Stopped(Exception):
    """The run was stopped by a signal after saving; rerun the same command to resume."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} after saving")
        self.exit_code = 130 if number == signal.SIGINT else 143


class Received:
    """The number of the first signal, or 0."""

    number = 0


@contextmanager
def catch_signals() -> Iterator[Received]:
    """Record the first signal instead of stopping."""
    received = Received()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may install handlers
        yield received
        return
    before = {number: signal.getsignal(number) for number in CAUGHT}

    def note(number: int, frame: FrameType | None) -> None:
        received.number = received.number or number
        for caught in CAUGHT:
            signal.signal(caught, before[caught])

    for number in CAUGHT:
        signal.signal(number, note)
    try:
        yield received
    finally:
        for number in CAUGHT:
            signal.signal(number, before[number])
