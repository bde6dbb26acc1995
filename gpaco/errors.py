"""Errors for the user: a cause and a remedy, one line each, and the exit code."""

from collections.abc import Iterable
from difflib import get_close_matches

ALSO = {  # other words for ours
    "cross-entropy": "ce",
    "crossentropy": "ce",
    "xent": "ce",
    "logit-adjustment": "balanced-softmax",
    "eval": "evaluate",
    "test": "evaluate",
    "infer": "predict",
    "fit": "train",
}


class Problem(Exception):
    """What went wrong, and what to do about it."""

    exit_code = 1

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause}\n{self.remedy}"


class UserError(Problem, ValueError):
    """Wrong input: a setting, data or a checkpoint."""

    exit_code = 2


class EnvironmentProblem(Problem, RuntimeError):
    """A problem with the machine: disk, memory, other processes."""

    exit_code = 3


class Diverged(Problem, RuntimeError):
    """Training produced numbers that are not finite."""

    exit_code = 4


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: a suggestion, or nothing.

    >>> nearest("gpcao", ["gpaco", "paco", "ce"])
    "; did you mean 'gpaco'?"
    >>> nearest("Cross_Entropy", ["gpaco", "paco", "ce"])
    "; did you mean 'ce'?"
    >>> nearest("zebra", ["gpaco"])
    ''
    """
    known, plain = list(known), word.lower().replace("_", "-")
    also = [ALSO[plain]] if ALSO.get(plain) in known else []
    begin = [name for name in known if len(plain) > 3 and name.startswith(plain)]
    matches = also or begin or get_close_matches(word, known, n=1) or get_close_matches(plain, known, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def installing(extra: str) -> str:
    """Return the remedy for a missing optional package. The only place to change once gpaco is on PyPI.

    >>> installing("seg")
    "in the clone of gpaco: pip install '.[seg]'"
    """
    return f"in the clone of gpaco: pip install '.[{extra}]'"
