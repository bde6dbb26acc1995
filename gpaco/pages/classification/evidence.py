"""What the page uses of a run: its metrics, its predictions and other files in its folder."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from gpaco.errors import UserError
from gpaco.metrics.arrays import Floats, Ints
from gpaco.metrics.classification import adjust, reversed_prior
from gpaco.pages.render import Facts
from gpaco.pages.runs import short_names
from gpaco.tasks.classification.logits import log_prior, softmax
from gpaco.tasks.classification.priors import log_shown, power
from gpaco.training.run import Run

_ROWS = 2048  # of logits at a time


@dataclass(frozen=True, eq=False)
class Evidence:
    """A run and its predictions: N test images, C classes.

    Args:
        name: name of the run on the page.
        metrics: the content of metrics.json.
        logits: (N, C), as the model returns them.
        labels, predictions: (N,).
        images: N names.
        analysis, data: the content of analysis.json and data.json; None without the file.
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
        """The number of training images per class, (C,)."""
        return np.asarray(self.metrics["counts"], np.int64)

    @cached_property
    def groups(self) -> NDArray[np.str_]:
        """The group of each class, (C,)."""
        return np.array([row["group"] for row in self.metrics["per_class"]])

    @cached_property
    def assumed(self) -> Floats:
        """Log of the class distribution that raw logits assume, (C,), up to a constant."""
        if self.metrics["assumes"] == "uniform":
            return np.zeros(len(self.counts))
        return power(self.metrics["assumes"]) * log_shown(self.metrics["counts"], self.metrics.get("shown"))

    @cached_property
    def confidence(self) -> Floats:
        """Probability of the predicted class of each image, (N,)."""
        return confidence(self.logits)

    @cached_property
    def uniform(self) -> NDArray[np.float32]:
        """Logits adjusted to equally likely classes, (N, C)."""
        return adjust(self.logits, self.assumed, np.zeros(len(self.assumed)))


def log_priors(counts: Ints) -> dict[str, Floats]:
    """Return the named class distributions as logs; a class without training images counts as having one."""
    return {
        "train": log_prior(counts),
        "reversed": np.log(reversed_prior(np.maximum(counts, 1))),
    }


def confidence(logits: NDArray[np.float32]) -> Floats:
    """Return the highest softmax probability of each row."""
    result = np.empty(len(logits))
    for rows in blocks(len(logits)):
        result[rows] = softmax(logits[rows]).max(1)
    return result


def blocks(number: int) -> Iterator[slice]:
    """Split rows into blocks, to keep copies small."""
    return (slice(start, start + _ROWS) for start in range(0, number, _ROWS))


def gather(runs: Sequence[Run], names: Sequence[str] | None = None) -> list[Evidence]:
    """Read the files of each run; the runs must have the same classes."""
    found = [_evidence(run, name) for run, name in zip(runs, names or short_names(runs), strict=True)]
    for one in found[1:]:
        if one.classes != found[0].classes:
            raise UserError(
                f"{runs[0].folder} and {one.run.folder} do not have the same classes", "give runs on the same data"
            )
    return found


def _evidence(run: Run, name: str) -> Evidence:
    metrics = run.metrics
    path = run.folder / "predictions.npz"
    again = f"remove {run.folder / 'metrics.json'} and rerun the train command, which then only evaluates"
    if not path.is_file():
        raise UserError(f"{run.folder} has no predictions.npz, which the page needs", again)
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            logits, labels, names = arrays["logits"], arrays["labels"], arrays["names"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise UserError(f"{path} is damaged: {error}", again) from error
    if logits.shape != (metrics["n"], len(metrics["per_class"])) or not len(labels) == len(names) == len(logits):
        raise UserError(f"{path} does not belong to the metrics.json beside it", again)
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
