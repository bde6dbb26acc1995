"""What the page knows of a run: its figures, its predictions and what else lies in its folder."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from gpaco.errors import UserError
from gpaco.metrics.arrays import Floats, Ints
from gpaco.metrics.classification import adjust, reversed_prior
from gpaco.tasks.classification.priors import log_assumed, log_prior
from gpaco.training.run import Run

Facts = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Evidence:
    """A run and its predictions: N test images, C classes.

    Args:
        name: what the run is called on the page.
        metrics: the content of metrics.json.
        logits: (N, C) as the model gave them.
        labels, predictions: (N,).
        images: N names.
        analysis, data: what training measured and noted, if it did.
    """

    name: str
    run: Run
    metrics: Facts
    logits: NDArray[np.float32]
    labels: Ints
    predictions: Ints
    images: tuple[str, ...]
    analysis: Facts | None
    data: Facts | None

    @cached_property
    def classes(self) -> list[str]:
        return [row["name"] for row in self.metrics["per_class"]]

    @cached_property
    def counts(self) -> Ints:
        """Training images of each class, (C,)."""
        return np.asarray(self.metrics["counts"], np.int64)

    @cached_property
    def groups(self) -> NDArray[np.str_]:
        """The group of each class, (C,)."""
        return np.array([row["group"] for row in self.metrics["per_class"]])

    @cached_property
    def assumed(self) -> Floats:
        """Log of the class distribution that raw logits assume, (C,); only differences between classes count."""
        return log_assumed(self.metrics, len(self.counts))

    @cached_property
    def confidence(self) -> Floats:
        """Probability of the winner of each image, (N,)."""
        return confidence(self.logits)

    @cached_property
    def uniform(self) -> NDArray[np.float32]:
        """Logits made right for classes that are equally likely."""
        return adjust(self.logits, self.assumed, np.zeros(len(self.assumed)))


def log_priors(counts: Ints) -> dict[str, Floats]:
    """The distributions that the page names, as logs; a class without training images counts as one with one."""
    return {
        "train": log_prior(counts),
        "uniform": np.zeros(len(counts)),
        "reversed": np.log(reversed_prior(np.maximum(counts, 1))),
    }


def confidence(logits: NDArray[np.float32]) -> Floats:
    """The probability of the winner of each row."""
    result = np.empty(len(logits))
    for rows in blocks(len(logits)):
        scores = np.asarray(logits[rows], np.float64)
        result[rows] = 1 / np.exp(scores - scores.max(1, keepdims=True)).sum(1)
    return result


def blocks(number: int, size: int = 2048) -> Iterator[slice]:
    """Rows to handle at once, so that copies stay small."""
    return (slice(start, start + size) for start in range(0, number, size))


def probabilities(logits: NDArray[np.float32]) -> Floats:
    """Softmax of each row."""
    scores = np.asarray(logits, np.float64)
    weights = np.exp(scores - scores.max(1, keepdims=True, initial=-np.inf))
    result: Floats = weights / weights.sum(1, keepdims=True)
    return result


def gather(runs: Sequence[Run], names: Sequence[str] | None = None) -> list[Evidence]:
    """The evidence of each run; an error where files are missing or the classes are not the same."""
    if not runs:
        raise UserError("a page needs a run", "give one run or more")
    found = [_evidence(run, name) for run, name in zip(runs, names or _names(runs), strict=True)]
    for one in found[1:]:
        if one.classes != found[0].classes:
            raise UserError(
                f"{runs[0].folder} and {one.run.folder} do not have the same classes", "give runs on the same data"
            )
    return found


def _names(runs: Sequence[Run]) -> list[str]:
    """The parts of the folders that tell the runs apart; the last part of a single one."""
    parts = [run.folder.resolve().parts for run in runs]
    start = _alike(parts)
    end = _alike([one[start:][::-1] for one in parts])
    names = ["/".join(one[start : len(one) - end]) for one in parts]
    if len(runs) == 1 or not all(names):
        names = [one[-1] for one in parts]
    twice = {name for name in names if names.count(name) > 1}
    return [f"{name} ({number})" if name in twice else name for number, name in enumerate(names, 1)]


def _alike(parts: Sequence[Sequence[str]]) -> int:
    """How many of the first words all have in common."""
    return next((k for k, words in enumerate(zip(*parts, strict=False)) if len(set(words)) > 1), min(map(len, parts)))


def _evidence(run: Run, name: str) -> Evidence:
    metrics = run.metrics
    path = run.folder / "predictions.npz"
    again = f"remove {run.folder / 'metrics.json'} and give the same train command again: it only evaluates"
    if not path.is_file():
        raise UserError(f"{run.folder} has no predictions.npz: there is nothing to make a page from", again)
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            logits, labels, names = arrays["logits"], arrays["labels"], arrays["names"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise UserError(f"{path} is damaged: {error}", again) from error
    if logits.shape != (metrics["n"], len(metrics["per_class"])) or not len(labels) == len(names) == len(logits):
        raise UserError(f"{path} does not belong to metrics.json beside it", again)
    return Evidence(
        name=name,
        run=run,
        metrics=metrics,
        logits=logits,
        labels=labels.astype(np.int64),
        predictions=logits.argmax(1) if len(logits) else np.zeros(0, np.int64),
        images=tuple(map(str, names)),
        analysis=_json(run.folder / "analysis.json"),
        data=_json(run.folder / "data.json"),
    )


def _json(path: Path) -> Facts | None:
    return dict(json.loads(path.read_text())) if path.is_file() else None
