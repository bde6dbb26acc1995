"""Words for messages: paths that any terminal can print, and long lists cut short."""

import os
from collections.abc import Sequence


def printable(path: os.PathLike[str] | str) -> str:
    """A path as text that every terminal and JSON file takes, also where its bytes are not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def some(words: Sequence[str], limit: int = 5) -> str:
    """The first few of many words, for a message.

    >>> some(["a", "b", "c"], 2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(map(repr, words[:limit]))
    return shown if len(words) <= limit else f"{shown} and {len(words) - limit} more"


def counted(n: int, word: str) -> str:
    """A number of things, with the plural.

    >>> counted(1, "image"), counted(2000, "class")
    ('1 image', '2,000 classes')
    """
    return f"{n:,} {word}{'' if n == 1 else 'es' if word.endswith('s') else 's'}"
