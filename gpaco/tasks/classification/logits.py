"""Logits as arrays, and class distributions as logs. Needs no torch: exported models are used without it."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpaco.errors import UserError, nearest

Logits = NDArray[np.float32]
Floats = NDArray[np.float64]


def softmax(logits: NDArray[Any]) -> Floats:
    """Return the probabilities of each row, (N, C)."""
    scores = np.asarray(logits, np.float64)
    raised = np.exp(scores - scores.max(1, keepdims=True, initial=-np.inf))
    result: Floats = raised / raised.sum(1, keepdims=True)
    return result


def check_finite(logits: Logits) -> None:
    if not np.isfinite(logits.max(1)).all():
        raise UserError(
            "the logits of the model are not finite, so there are no predictions",
            "training has diverged: evaluate an older checkpoint",
        )


def log_prior(counts: ArrayLike) -> Floats:
    """Return the log of the training class distribution; a class without images counts as one image."""
    counts = np.maximum(np.asarray(counts, dtype=np.float64), 1)
    logs: Floats = np.log(counts / counts.sum())
    return logs


def wanted_prior(prior: str, classes: Sequence[str], counts: Sequence[int] | None) -> Floats:
    """Return the log of the class distribution "uniform", "train" or in a CSV file, (C,)."""
    if prior == "uniform":
        return np.zeros(len(classes))
    if prior == "train" and counts is not None:
        return log_prior(counts)
    return read_prior(Path(prior), classes)


def read_prior(path: Path, classes: Sequence[str]) -> NDArray[np.float64]:
    """Return the log probabilities in a CSV file of `class,probability` rows (or counts), one for each class."""
    if not path.is_file():
        raise UserError(
            f"--prior must be 'uniform', 'train' or a CSV file, but there is no file {str(path)!r}"
            f"{nearest(str(path), ['uniform', 'train'])}",
            "write a file of class,probability rows",
        )
    shares: dict[str, float] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        what = "UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"CSV: {error}"
        raise UserError(f"{path} is not {what}", "write class,probability rows as CSV in UTF-8") from None
    for line, row in enumerate(rows, 1):
        if not row or (line == 1 and row[-1].strip().lower() in ("probability", "count", "prior", "share")):
            continue
        name = normalize("NFC", row[0])  # as class names are
        if name in shares:
            raise UserError(f"{path}, line {line}: a second row for class {name!r}", "remove one of the two")
        try:
            shares[name] = float(row[1])
        except (IndexError, ValueError):
            raise UserError(f"{path}, line {line}: expected class,probability, got {row}", "fix the line") from None
    classes = [normalize("NFC", name) for name in classes]
    unknown = [name for name in shares if name not in set(classes)]
    missing = [name for name in classes if name not in shares]
    what = ""
    if unknown:
        what = f"unknown class {unknown[0]!r}{nearest(unknown[0], missing or classes)}"
    elif missing:
        what = f"no row for class {missing[0]!r}"
    elif not all(0 < share < np.inf for share in shares.values()):
        what = "a share is not above 0"
    if what:
        raise UserError(f"{path}: {what}", "give every class one share above 0")
    values = np.array([shares[name] for name in classes])
    result: NDArray[np.float64] = np.log(values / values.sum())
    return result
