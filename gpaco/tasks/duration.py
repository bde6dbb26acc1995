"""Estimates of training time: measuring a short action, and formatting seconds."""

import time
from collections.abc import Callable

import torch

from gpaco.system.precision import bf16_is_fast
from gpaco.system.words import plural

LONG = 30 * 60  # seconds from which a faster alternative is suggested


def seconds_of(action: Callable[[], object]) -> float:
    """Return the time of an action, after a warm-up."""
    action()
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def rounded(seconds: float) -> str:
    """Return a time in the unit that suits it.

    >>> rounded(1.6), rounded(150), rounded(9000)
    ('2 seconds', '2 minutes', '2.5 hours')
    """
    if seconds < 90:
        return plural(max(round(seconds), 1), "second")
    return f"{seconds / 60:.0f} minutes" if seconds < 90 * 60 else f"{seconds / 3600:.1f} hours"


def format_time(seconds: float, faster: str, device: torch.device, amp: str) -> str:
    """Return a line about the training time; if it is long, with faster options."""
    if amp == "off" and bf16_is_fast(device):
        faster = f"--amp bf16, {faster}"
    text = f"estimated time on this machine: about {rounded(seconds) if seconds >= 90 else 'a minute'}"
    return f"{text}; faster: {faster}" if seconds > LONG else text
