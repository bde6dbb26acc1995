"""How long training will take: the time of a short action, and seconds in words."""

import time
from collections.abc import Callable

LONG = 30 * 60  # seconds, after which a faster way is suggested


def seconds_of(action: Callable[[], object]) -> float:
    """Return the time of an action, after one try to warm up."""
    action()
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def time_in_words(seconds: float, faster: str) -> str:
    """Return a line about the time that training takes; if it is long, with the options that are faster."""
    minutes = seconds / 60
    long = f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"
    text = f"estimated time on this machine: about {long if minutes >= 1.5 else 'a minute'}"
    return f"{text}; faster: {faster}" if seconds > LONG else text
