"""The analysis of the paper, measured on a run: `class_gradient_norms` (Fig. 2) and `measured_mass`.

`analyze` returns both, ready for JSON. Arrays have one number per class, nan if unknown.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpaco.data.samples import Samples
from gpaco.methods import PARAMETRIC
from gpaco.metrics.optimum import log_log_slope
from gpaco.tasks.classification.batches import FeatureSource
from gpaco.tasks.classification.predictor import Predictor
from gpaco.tasks.classification.probe import Probe, Stage, measure
from gpaco.training.run import Run, stages_of

Floats = NDArray[np.float64]
SECONDS = 20.0  # time limit of `analyze` at the end of training, without loading


@dataclass(frozen=True)
class GradientNorms:
    """Mean length of the gradient of one view's loss, for each class."""

    method: str
    stage: str  # of the run; empty if it has only one
    images: int  # number of images measured
    centers: Floats  # at the center of the class, over all images as training shows them
    pull: Floats  # the part of it from images of the class
    push: Floats  # the part of it from all other images
    slope: float | None  # of `centers` against the number of training images per class: 0 is balanced


def class_gradient_norms(
    run: Run | Path | str, data: Samples | Path | str | None = None, *, images: int = 1000, seed: int = 0
) -> GradientNorms:
    """Return the gradient norm at each class center (the paper's Fig. 2), and its log-log slope.

    The loss is that of the run, at its saved weights, in a step as in training: with the same views and prior, and for
    contrastive methods with the saved memory and a batch drawn as in training. Only dropout and batch norm are in
    evaluation mode, and labels are not mixed. For each view x of an image, the gradient of its loss at center c is
    exactly (dloss / dlogit_c) * features(x), divided by the temperature of the logits, if any; for parametric contrast,
    this is

        (probability of center c in the softmax over centers and references - target of c) * features(x)

    `centers` is the mean of its length over training images. They are sampled by class, with the same number per class
    if possible, and weighted by how often training shows them. Gradients add up over a batch: this measures how
    strongly a center is pulled, not how much the pulls cancel out.

    Args:
        data: images to use instead of the training split of the run.
        images: largest number of images to measure; with more classes than this, some have none.
        seed: seed of the sample.

    >>> from tempfile import TemporaryDirectory
    >>> from gpaco import train
    >>> with TemporaryDirectory() as out:
    ...     run = train("digits", out=out, method="ce", long_tail=50, epochs=2, say=lambda line: None)
    ...     norms = class_gradient_norms(run, images=100)
    >>> bool(norms.slope > 0.5)  # cross entropy moves the centers of frequent classes more
    True
    """
    stage = _stages(run)[-1]
    return _gradient_norms(stage, measure(stage, data, images, seed))


@dataclass(frozen=True)
class Mass:
    """Mean softmax probabilities of the anchors of each class; all nan unless the method is GPaCo or PaCo."""

    method: str
    stage: str
    images: int
    positives: Floats  # number of positives of an anchor
    center: Floats  # on its own center
    each: Floats  # on each positive
    together: Floats  # on all positives


def measured_mass(
    run: Run | Path | str, data: Samples | Path | str | None = None, *, images: int = 1000, seed: int = 0
) -> Mass:
    """Return the softmax mass on the own center and on positives by class, to compare with `optimal_probabilities`.

    It is the softmax over centers and references in a step like those of `class_gradient_norms`. In a run with several
    stages, the last one with parametric contrast is measured.
    """
    stage = _parametric(_stages(run))
    return _mass(stage, measure(stage, data, images, seed))


def analyze(
    run: Run | Path | str,
    samples: Samples | None = None,
    predictor: Predictor | None = None,
    cached: FeatureSource | None = None,
) -> dict[str, Any]:
    """Return all measurements of a run, ready for JSON: `analysis.json` in its folder.

    Keys: `method`, `counts` (training images), `shown` (as the sampler shows them), `settings` (alpha, memory, batch
    and views for `optimal_probabilities`; None without parametric contrast), and `gradients` and `mass` with the
    fields of `GradientNorms` and `Mass`. It uses at most 1,000 images, or as many as SECONDS allow.

    Args:
        samples: the training images; by default, read from the data of the run.
        predictor: the model of the run, if it is already loaded.
        cached: the features that its last stage was trained on, if they are still there.
    """
    stages = _stages(run)
    last, parametric = stages[-1], _parametric(stages)
    measured = measure(last, samples, predictor=predictor, seconds=SECONDS, cached=cached)
    other = measured if parametric is last else measure(parametric, samples, seconds=SECONDS)
    return {
        "method": stages[0].recipe.method.name,
        "counts": [int(count) for count in measured.counts],
        "shown": _plain(measured.shares * measured.counts.sum()),
        "settings": other.settings,
        "gradients": _plain(asdict(_gradient_norms(last, measured))),
        "mass": _plain(asdict(_mass(parametric, other))),
    }


# From a run to measurements


def _stages(run: Run | Path | str) -> list[Stage]:
    """Return the stages of a run whose folders still exist; the last one is the run itself."""
    *before, (whole, recipe) = stages_of(run)
    last = Stage(whole, recipe, recipe.name if before else "", whole.folder)
    return [*(Stage(*one, one[1].name, whole.folder) for one in before), last]


def _parametric(stages: list[Stage]) -> Stage:
    """Return the last stage with parametric contrast, or the last stage if none has it."""
    return next((stage for stage in reversed(stages) if stage.recipe.method.name in PARAMETRIC), stages[-1])


# From measurements to classes


def _gradient_norms(stage: Stage, measured: Probe) -> GradientNorms:
    labels, shares = measured.labels, measured.shares
    number = np.bincount(labels, minlength=len(shares))
    seen = number > 0
    # An anchor represents all images of its class that training shows.
    weight = (shares / np.maximum(number, 1) / shares[seen].sum())[labels]
    lengths = measured.gradients * weight[:, None]
    anchors = np.arange(len(labels))
    pull: Floats = np.bincount(labels, lengths[anchors, labels], minlength=len(shares)).astype(np.float64)
    pull[~seen & (shares > 0)] = np.nan  # no image of this class was measured
    lengths[anchors, labels] = 0
    push = lengths.sum(0)
    slope = log_log_slope(measured.counts, pull + push)
    return GradientNorms(stage.recipe.method.name, stage.name, measured.images, pull + push, pull, push, slope)


def _mass(stage: Stage, measured: Probe) -> Mass:
    each = measured.together / np.where(measured.positives > 0, measured.positives, np.nan)
    values = (measured.positives, measured.center, each, measured.together)
    means = (_means(value, measured.labels, len(measured.shares)) for value in values)
    return Mass(stage.recipe.method.name, stage.name, measured.images, *means)


def _means(values: NDArray[Any], labels: NDArray[np.int64], num_classes: int) -> Floats:
    """Return the mean value of each class without nans; nan for a class without values."""
    used = ~np.isnan(values)
    sums = np.bincount(labels[used], values[used].astype(np.float64), minlength=num_classes)
    sizes = np.bincount(labels[used], minlength=num_classes)
    return np.where(sizes > 0, sums / np.maximum(sizes, 1), np.nan)


def _plain(value: Any) -> Any:
    """Convert arrays to lists, round numbers to six digits, and replace non-finite ones by None."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return [_plain(float(item)) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value
