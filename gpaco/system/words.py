"""Text for messages: plurals, lists, printable paths and errors."""

import os
from collections.abc import Sequence


def plural(n: int, word: str) -> str:
    """Return a number with its noun, in the plural if needed.

    >>> plural(1, "image"), plural(2000, "class")
    ('1 image', '2,000 classes')
    """
    return f"{n:,} {word}{'' if n == 1 else 'es' if word.endswith('s') else 's'}"


def some(words: Sequence[str], limit: int = 5) -> str:
    """Return the first few words of a list, quoted.

    >>> some(["a", "b", "c"], 2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(map(repr, words[:limit]))
    return shown if len(words) <= limit else f"{shown} and {len(words) - limit} more"


def join_words(words: Sequence[str]) -> str:
    """Join words with commas and a final "and".

    >>> join_words(["a"]), join_words(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def with_commas(words: str | int | Sequence[str | int] | None) -> str | None:
    """Return words as the command line takes them.

    >>> with_commas(["fog", "snow"]), with_commas((1, 5)), with_commas(3), with_commas(None)
    ('fog,snow', '1,5', '3', None)
    """
    if words is None or isinstance(words, str):
        return words
    return ",".join(map(str, [words] if isinstance(words, int) else words))


def in_lines(words: Sequence[str], width: int = 79) -> list[str]:
    """Join words with commas into indented lines that fit a terminal; no word is broken.

    >>> in_lines(["a = 1", "b = 2", "c = 3"], 16)
    ['  a = 1, b = 2,', '  c = 3']
    """
    lines = ["  "]
    for word in words:
        if len(lines[-1]) > 2 and len(lines[-1]) + len(word) + 1 > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("  ")
        lines[-1] += f"{word}, "
    lines[-1] = lines[-1].removesuffix(", ")
    return lines


def printable(path: os.PathLike[str] | str) -> str:
    """Return a path as valid UTF-8 text for terminals and JSON, even if its bytes are not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def one_line(error: Exception) -> str:
    """Return the message of an error on one line of at most 200 characters."""
    return " ".join(str(error).split())[:200] or type(error).__name__
