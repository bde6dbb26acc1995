"""Graceful stopping: a signal sets a flag that the loop checks between steps."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

CAUGHT = [signal.SIGINT, signal.SIGTERM]
if hasattr(signal, "SIGUSR1"):  # not on Windows
    CAUGHT.append(signal.SIGUSR1)
IMPATIENT = 3.0  # seconds after the first signal from which a Ctrl-C stops at once

_ending = False


class Stopped(Exception):
    """The run was stopped by a signal; rerun the same command to resume."""

    def __init__(self, number: int, *, saved: bool = True) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}{' after saving' if saved else ''}")
        self.number = number
        self.exit_code = 130 if number == signal.SIGINT else 143


class Received:
    """The number of the first signal, or 0."""

    number = 0


@contextmanager
def catch_signals() -> Iterator[Received]:
    """Record the first signal instead of stopping.

    Repeated signals are ignored: torchrun forwards signals that its processes may also have received directly. Only a
    later Ctrl-C, by a person who does not want to wait, stops at once.
    """
    received = Received()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may install handlers
        yield received
        return
    before = {number: signal.getsignal(number) for number in CAUGHT}
    since = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal since
        if not received.number:
            received.number, since = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - since > IMPATIENT:
            raise KeyboardInterrupt

    for number in CAUGHT:
        signal.signal(number, note)
    try:
        yield received
    except BaseException:
        _handle(dict.fromkeys(CAUGHT, signal.SIG_IGN) if received.number and _ending else before)
        raise
    _handle(before)
    if received.number:  # after the body has looked for the last time
        signal.raise_signal(received.number)


def _handle(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: installed outside Python


def end_with_first_signal() -> None:
    """Prepare a command: it ignores signals after a run was stopped by one, and SIGUSR1 ends it as SIGTERM does."""
    global _ending
    _ending = True
    if hasattr(signal, "SIGUSR1") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, lambda *_: signal.raise_signal(signal.SIGTERM))


@contextmanager
def held_signals() -> Iterator[None]:
    """Block signals while processes are forked: they inherit the block until each calls `ignore_signals`."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """Ignore signals in a worker process: its parent handles them, and then ends the worker.

    Ctrl-C, timeout, systemd and Slurm signal the whole process group, or every process of a run.
    """
    for number in CAUGHT:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUGHT)
