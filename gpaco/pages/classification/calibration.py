"""Do probabilities mean what they say: reliability by group, per class, and what one temperature would mend."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpaco.metrics.arrays import Ints
from gpaco.metrics.classification import ece
from gpaco.metrics.groups import GROUPS
from gpaco.pages.classification.evidence import Evidence, Facts, blocks, confidence, probabilities

BINS = 15
_FITTED = 4000  # images a temperature is fitted on; more change its third digit


def reliability(one: Evidence) -> list[Facts]:
    """For all images and each group, the bins of confidence that have images: how sure, and how often right."""
    sure, right = one.confidence, one.predictions == one.labels
    group = one.groups[one.labels]
    places = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], sure, side="left")
    rows: list[Facts] = []
    for name in ("all", *GROUPS):
        for k in range(BINS):
            mine = (places == k) & ((group == name) | (name == "all"))
            if mine.any():
                rows.append(
                    {
                        "group": name,
                        "lower": k / BINS,
                        "upper": (k + 1) / BINS,
                        "images": int(mine.sum()),
                        "confidence": float(sure[mine].mean()),
                        "accuracy": float(right[mine].mean()),
                    }
                )
    return rows


def tempered(one: Evidence) -> Facts:
    """The temperature that would mend probabilities, and the calibration error before and after it, by group.

    Each half of the images gets the temperature that was fitted on the other half, so that no image is judged by a
    number it helped to choose. `temperature` is their geometric mean; None with fewer than 20 images.
    """
    right, group = one.predictions == one.labels, one.groups[one.labels]
    number = len(right)
    before = one.confidence
    after, temperature = before.copy(), None
    if number >= 20:
        half = np.random.default_rng(0).permutation(number) < number // 2
        fitted = {side: _fit(one.logits[rows], one.labels[rows]) for side, rows in _sample(half)}
        for side, value in fitted.items():
            after[half != side] = confidence(one.logits[half != side] / np.float32(value))
        temperature = float(np.sqrt(fitted[True] * fitted[False]))
    rows = []
    for name in ("all", *GROUPS):
        mine = (group == name) | (name == "all")
        error = ece(after[mine], right[mine]) if temperature else None
        rows.append({"group": name, "before": ece(before[mine], right[mine]), "after": error})
    return {"temperature": temperature, "rows": rows}


def classwise_ece(one: Evidence) -> float | None:
    """Mean over classes of how far the probability of that class is from how often it is right (15 bins)."""
    size = len(one.counts)
    if not len(one.labels):
        return None
    total = np.bincount(one.labels, minlength=size).astype(float)  # ends as the sum over all images of (right - p)
    upper = np.zeros(size * BINS)  # the same in each bin above the first: there are few such entries
    for rows in blocks(len(one.labels)):
        p = probabilities(one.logits[rows])
        total -= p.sum(0)
        image, c = np.nonzero(p > 1 / BINS)
        found = p[image, c]
        place = c * BINS + np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], found, side="left")
        upper += np.bincount(place, (one.labels[rows][image] == c) - found, minlength=size * BINS)
    gaps = upper.reshape(size, BINS)
    gaps[:, 0] = total - gaps[:, 1:].sum(1)
    return float(np.abs(gaps).sum(1).mean() / len(one.labels))


def overconfidence(one: Evidence) -> Facts:
    """How sure the model is when it takes an image of a rare class for a more frequent one."""
    up = one.counts[one.predictions] > one.counts[one.labels]
    mine = up & (one.groups[one.labels] == "few")
    return {"images": int(mine.sum()), "confidence": float(one.confidence[mine].mean()) if mine.any() else None}


def _fit(logits: NDArray[np.float32], labels: Ints) -> float:
    """The temperature with the least cross entropy: golden section over its logarithm."""
    from scipy.optimize import minimize_scalar

    scores = np.asarray(logits, np.float64)
    scores -= scores.max(1, keepdims=True)
    own = scores[np.arange(len(labels)), labels]

    def loss(log_t: float) -> float:
        inverse = np.exp(-log_t)
        return float((np.log(np.exp(scores * inverse).sum(1)) - own * inverse).mean())

    found = minimize_scalar(loss, bounds=(np.log(0.05), np.log(20)), method="bounded", options={"xatol": 1e-3})
    return float(np.exp(found.x))


def _sample(half: NDArray[np.bool_]) -> Iterator[tuple[bool, Ints]]:
    for side in (True, False):
        yield side, np.flatnonzero(half == side)[:_FITTED]
