"""Calibration: reliability by group and class, and how much temperature scaling would help."""

import numpy as np

from gpaco.metrics.calibration import fit_factor
from gpaco.metrics.classification import ece
from gpaco.metrics.groups import GROUPS
from gpaco.pages.classification.evidence import Evidence, blocks, confidence
from gpaco.pages.render import Facts
from gpaco.tasks.classification.logits import softmax

BINS = 15
EVERY = ("all", *GROUPS)
_FITTED = 4000  # images used to fit a temperature; more change its third digit


def reliability(one: Evidence) -> list[Facts]:
    """Return mean confidence and accuracy of each nonempty bin of confidence, for all images and for each group."""
    sure, right = one.confidence, one.predictions == one.labels
    group = one.groups[one.labels]
    places = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], sure, side="left")
    masks = [(name, (places == k) & ((group == name) | (name == "all"))) for name in EVERY for k in range(BINS)]
    return [
        {
            "group": name,
            "images": int(mine.sum()),
            "confidence": float(sure[mine].mean()),
            "accuracy": float(right[mine].mean()),
        }
        for name, mine in masks
        if mine.any()
    ]


def tempered(one: Evidence) -> Facts:
    """Return the best temperature, and the calibration error by group without and with it.

    Each half of the images is evaluated with the temperature fitted on the other half. `temperature` is the geometric
    mean of both; None with fewer than 20 images.
    """
    right, group = one.predictions == one.labels, one.groups[one.labels]
    number = len(right)
    before = one.confidence
    after, temperature = before.copy(), None
    if number >= 20:
        half = np.random.default_rng(0).permutation(number) < number // 2
        fitted = []
        for fit, test in ((half, ~half), (~half, half)):
            used = np.flatnonzero(fit)[:_FITTED]
            fitted.append(1 / fit_factor(one.logits[used], one.labels[used]))
            after[test] = confidence(one.logits[test] / np.float32(fitted[-1]))
        temperature = float(np.sqrt(fitted[0] * fitted[1]))
    rows = []
    for name in EVERY:
        mine = (group == name) | (name == "all")
        error = ece(after[mine], right[mine]) if temperature else None
        rows.append({"group": name, "before": ece(before[mine], right[mine]), "after": error})
    return {"temperature": temperature, "rows": rows}


def classwise_ece(one: Evidence) -> float | None:
    """Return the calibration error of each class's probability (15 bins), averaged over classes."""
    size = len(one.counts)
    if not len(one.labels):
        return None
    total = np.bincount(one.labels, minlength=size).astype(float)  # becomes the sum of (right - p) over all images
    upper = np.zeros(size * BINS)  # the same for each bin except the first, which has most of the entries
    for rows in blocks(len(one.labels)):
        p = softmax(one.logits[rows])
        total -= p.sum(0)
        image, c = np.nonzero(p > 1 / BINS)
        found = p[image, c]
        place = c * BINS + np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], found, side="left")
        upper += np.bincount(place, (one.labels[rows][image] == c) - found, minlength=size * BINS)
    gaps = upper.reshape(size, BINS)
    gaps[:, 0] = total - gaps[:, 1:].sum(1)
    return float(np.abs(gaps).sum(1).mean() / len(one.labels))


def overconfidence(one: Evidence) -> Facts:
    """Return the mean confidence of errors in which a rare class is mistaken for a more frequent one."""
    up = one.counts[one.predictions] > one.counts[one.labels]
    mine = up & (one.groups[one.labels] == "few")
    return {"images": int(mine.sum()), "confidence": float(one.confidence[mine].mean()) if mine.any() else None}
