"""Words for messages: plurals, long lists, paths and errors as printable text."""

import os
from collections.abc import Sequence


def counted(n: int, word: str) -> str:
    """Return a number with its noun, in the plural where needed.

    >>> counted(1, "image"), counted(2000, "class")
    ('1 image', '2,000 classes')
    """
    return f"{n:,} {word}{'' if n == 1 else 'es' if word.endswith('s') else 's'}"


def some(words: Sequence[str], limit: int = 5) -> str:
    """Return the first few words of a long list, quoted.

    >>> some(["a", "b", "c"], 2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(map(repr, words[:limit]))
    return shown if len(words) <= limit else f"{shown} and {len(words) - limit} more"


def listed(words: Sequence[str]) -> str:
    """Join words with commas and a final "and".

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def printable(path: os.PathLike[str] | str) -> str:
    """Return a path as text that any terminal or JSON file accepts, even if its bytes are not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def one_line(error: Exception) -> str:
    """Return the message of an error on one line of at most 200 characters."""
    return " ".join(str(error).split())[:200] or type(error).__name__
