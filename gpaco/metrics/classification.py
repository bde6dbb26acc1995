"""Metrics of a classifier: pure functions on NumPy arrays, with all rates between 0 and 1.

The recall of a class without test images is None: it is left out of every mean and counted as absent. A group with only
such classes is None too, not 0. Shapes: N test images, C classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpaco.errors import UserError
from gpaco.metrics.arrays import Floats, Ints, mean, number
from gpaco.metrics.groups import FEW, GROUPS, MANY, groups
from gpaco.metrics.intervals import wilson

_ROWS = 2048  # rows of logits at a time: with 10,000 classes a block stays below 200 MB


def ece(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float | None:
    """Return the expected calibration error: the mean gap between accuracy and confidence over bins of equal width.

    A bin holds lower < confidence <= upper (Guo et al., 2017), weighted by its number of images. None without images.
    """
    confidence, correct = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
    if len(confidence) == 0:
        return None
    edges = np.linspace(0, 1, bins + 1)
    places = np.searchsorted(edges[1:-1], confidence, side="left")
    gaps = np.bincount(places, correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))


def adjust(logits: NDArray[Any], from_log_prior: ArrayLike, to_log_prior: ArrayLike) -> NDArray[Any]:
    """Return logits adjusted from one class distribution to another; both priors are (C,) logs."""
    shift = np.asarray(to_log_prior, np.float64) - np.asarray(from_log_prior, np.float64)
    return np.asarray(logits + shift.astype(logits.dtype))


def reversed_prior(counts: ArrayLike) -> Floats:
    """Return the reversed training distribution: the k-th rarest class has the share of the k-th most frequent one.

    Classes with equal counts get equal shares.

    >>> reversed_prior([6, 3, 1]).tolist()
    [0.1, 0.3, 0.6]
    """
    ordered = np.sort(np.asarray(counts, np.float64))
    _, inverse, ties = np.unique(np.asarray(counts), return_inverse=True, return_counts=True)
    of_rank = np.repeat(np.arange(len(ties)), ties)
    shares = (np.bincount(of_rank, ordered[::-1]) / ties)[inverse]
    return np.asarray(shares / shares.sum())


def reweighted_accuracy(recalls: ArrayLike, prior: ArrayLike) -> float | None:
    """Return the accuracy under the class distribution `prior`: the weighted mean of the recalls (C,).

    Absent classes have a recall of NaN; their share goes to the others. None if no class is left.

    >>> reweighted_accuracy([1.0, 0.5, float("nan")], [0.25, 0.25, 0.5])
    0.75
    """
    recalls, prior = np.asarray(recalls, np.float64), np.asarray(prior, np.float64)
    seen = ~np.isnan(recalls)
    mass = prior[seen].sum()
    return float((prior[seen] * recalls[seen]).sum() / mass) if mass > 0 else None


def accuracies(
    predictions: ArrayLike, labels: ArrayLike, counts: ArrayLike | None, num_classes: int, *, many: float, few: float
) -> dict[str, float | None]:
    """Return the metrics of `summarize` that need only predicted classes (N,): top1, the groups and macro."""
    predictions, labels = np.asarray(predictions), np.asarray(labels, np.int64)
    correct = predictions == labels
    test = np.bincount(labels, minlength=num_classes)
    recalls = np.bincount(labels[correct], minlength=num_classes) / np.where(test, test, np.nan)
    group = np.full(num_classes, "") if counts is None else groups(counts, many, few)
    by_group = {name: mean(recalls[group == name]) for name in GROUPS}
    return {"top1": mean(correct), **by_group, "macro": mean(recalls)}


def summarize(
    logits: NDArray[Any],
    labels: ArrayLike,
    counts: ArrayLike | None,
    classes: Sequence[str],
    *,
    many: float = MANY,
    few: float = FEW,
) -> dict[str, Any]:
    """Return all metrics of a test set, ready for JSON.

    `top1` and `top5` are over images; `macro` and the groups are means of per-class recall; `geometric_mean` is 0 if a
    class has no correct prediction. `long_tailed` and `reversed` are top-1 accuracy with the test images reweighted to
    that class distribution. Ties go to the first class.

    Args:
        logits: (N, C).
        labels: class indices (N,).
        counts: training images per class (C,), which define the groups. If None (unknown), groups and metrics that
            depend on the training distribution are None.
        classes: C class names.
        many, few: limits of the groups, see `groups`.
    """
    num_classes, known = len(classes), counts is not None
    train = np.zeros(num_classes, np.int64) if counts is None else np.asarray(counts)
    labels = np.asarray(labels, np.int64)
    predictions, rank, confidence = _read_logits(logits, labels)
    correct = predictions == labels

    test = np.bincount(labels, minlength=num_classes)
    predicted = np.bincount(predictions, minlength=num_classes)
    right = np.bincount(labels[correct], minlength=num_classes)
    recalls = right / np.where(test, test, np.nan)
    precisions = right / np.where(predicted, predicted, np.nan)
    f1 = np.where(test, 2 * right / np.maximum(test + predicted, 1), np.nan)
    group = groups(train, many, few) if known else np.full(num_classes, "")
    group_of_image = group[labels]

    seen = recalls[~np.isnan(recalls)]
    return {
        "n": len(labels),
        **accuracies(predictions, labels, counts, num_classes, many=many, few=few),
        "top5": mean(rank < 5),
        "macro_f1": mean(f1),
        "geometric_mean": _geometric_mean(seen),
        "ece": ece(confidence, correct),
        **{f"ece_{g}": ece(confidence[group_of_image == g], correct[group_of_image == g]) for g in GROUPS},
        "long_tailed": reweighted_accuracy(recalls, train / train.sum()) if known else None,
        "reversed": reweighted_accuracy(recalls, reversed_prior(train)) if known else None,
        "groups": {name: int((group == name).sum()) if known else None for name in GROUPS},
        "cuts": {"many": many, "few": few},
        "absent": int((test == 0).sum()),
        "per_class": [
            {
                "name": str(classes[c]),
                "group": str(group[c]) if known else None,
                "train": int(train[c]) if known else None,
                "test": int(test[c]),
                "recall": number(recalls[c]),
                "interval": None if (bounds := wilson(int(right[c]), int(test[c]))) is None else list(bounds),
                "precision": number(precisions[c]),
                "f1": number(f1[c]),
            }
            for c in range(num_classes)
        ],
    }


def _read_logits(logits: NDArray[Any], labels: Ints) -> tuple[Ints, Ints, Floats]:
    """Return the prediction, the rank of the label, and the probability of the prediction for each row."""
    predictions, rank = np.empty(len(labels), np.int64), np.empty(len(labels), np.int64)
    confidence = np.empty(len(labels))
    columns = np.arange(logits.shape[1])
    for start in range(0, len(labels), _ROWS):
        rows = slice(start, start + _ROWS)
        scores, own = np.asarray(logits[rows], np.float64), labels[rows, None]
        best = scores.max(1, keepdims=True)
        if not np.isfinite(best).all():  # the maximum is NaN if anything in its row is
            raise UserError(
                "the logits of the model are not finite, so there are no predictions to evaluate",
                "training has diverged: lower the learning rate (optimizer.lr), or evaluate an older checkpoint",
            )
        at_label = np.take_along_axis(scores, own, 1)
        predictions[rows] = scores.argmax(1)
        rank[rows] = ((scores > at_label) | ((scores == at_label) & (columns < own))).sum(1)
        confidence[rows] = 1 / np.exp(scores - best).sum(1)
    return predictions, rank, confidence


def _geometric_mean(values: Floats) -> float | None:
    if len(values) == 0:
        return None
    return 0.0 if (values == 0).any() else float(np.exp(np.log(values).mean()))
