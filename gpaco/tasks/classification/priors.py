"""The class distribution that logits assume, and how they are adjusted to another (docs/priors.md).

Raw logits assume uniform classes, the training distribution or a power of it, depending on the method. Then, in this
order:

    unbiased   - log w         removes the bias of a parametric loss against frequent classes
    tuned      + tau * log q   tau selected on validation data by macro recall: assumes uniform classes
    --prior    + log p         for the class distribution expected at test time, - log of the assumed one
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpaco.errors import UserError
from gpaco.metrics.classification import adjust
from gpaco.system.files import write_atomic
from gpaco.tasks.classification.card import Card, Tuned
from gpaco.tasks.classification.logits import Floats, Logits, log_prior, wanted_prior
from gpaco.training.card import read_card

TAUS = np.round(np.arange(-40, 41) / 20, 2)  # -2 to 2; 0 changes nothing, -1 removes the training frequencies
FILE = "prior.json"  # in a run whose prior was tuned
_ROWS = 2048


def final_logits(logits: Logits, card: Card, *, prior: str | None = None, unbiased: bool = False) -> Logits:
    """Return logits adjusted to the class distribution `prior`, after removing the bias of the loss if `unbiased`."""
    if card.counts is None and (unbiased or (prior is not None and (prior == "train" or card.assumes != "uniform"))):
        raise UserError(
            "this run does not have the number of training images per class",
            "convert it again with --counts FILE, or leave out --prior and --unbiased",
        )
    if unbiased:
        shift = correction(card, unbiased=True)
        if card.tuned is None:
            logits = logits + shift
        elif shift.any() and not card.tuned.unbiased:
            raise UserError(
                "the prior of this run was tuned on uncorrected logits, which cannot be corrected afterward",
                "leave out --unbiased, or tune again with it: gpaco evaluate RUN --unbiased --tune-prior",
            )
    if prior is None:
        return logits
    return adjust(logits, log_assumed(card), wanted_prior(prior, card.classes, card.counts))


def log_assumed(card: Card) -> Floats:
    """Return the log of the class distribution that the logits assume."""
    if card.assumes == "uniform":
        return np.zeros(len(card.classes))
    return power(card.assumes) * log_shown(card.counts or (), card.shown)


def power(assumes: str) -> float:
    """Return to which power logits assume the class distribution that the sampler showed.

    >>> power("uniform"), power("train"), power("train^0.5")
    (0.0, 1.0, 0.5)
    """
    return 0.0 if assumes == "uniform" else float(assumes.partition("^")[2] or 1)


def assumed_prior(cards: Sequence[Card], prior: str | None) -> Floats | None:
    """Return the log of the class distribution that the mean of final logits assumes; None if unknown."""
    if prior is None and any(card.counts is None and card.assumes != "uniform" for card in cards):
        return None
    logs = [log_assumed(card) if prior is None else wanted_prior(prior, card.classes, card.counts) for card in cards]
    return np.asarray(np.mean(logs, axis=0))


def check_correction(card: Card, prior: str | None, unbiased: bool) -> None:
    """Raise the errors of `final_logits` before all images are read."""
    final_logits(np.zeros((0, len(card.classes)), np.float32), card, prior=prior, unbiased=unbiased)


def log_shown(counts: ArrayLike, shown: ArrayLike | None) -> Floats:
    """Return the log of the class distribution that the sampler showed; if unknown, that of the images."""
    return log_prior(counts) if shown is None else np.log(np.asarray(shown, dtype=np.float64))


def correction(card: Card, *, unbiased: bool, tau: float = 0.0) -> Logits:
    """Return what to add to raw logits, (C,): minus the bias of the loss if `unbiased`, plus `tau` * log prior."""
    shift: Logits = np.float32(tau) * log_prior(card.counts or np.ones(len(card.classes))).astype(np.float32)
    factor = np.float32(card.calibration.head if card.calibration else 1)
    return shift - factor * log_bias(card) if unbiased else shift


def log_bias(card: Card) -> Logits:
    """Return the bias of the loss in the logit of each class, (C,): log w, or 0 if training removed it."""
    if card.center_share is None:
        raise UserError(
            "this run was not trained with parametric contrast, so there is nothing to correct", "leave out --unbiased"
        )
    if card.label_smoothing or card.mixed:
        cause = "label smoothing" if card.label_smoothing else "mixup or cutmix"
        raise UserError(
            f"logits learned with {cause} cannot be corrected for the bias of the loss",
            "leave out --unbiased, or let validation data select a correction: gpaco evaluate RUN --tune-prior",
        )
    log_w = np.log(np.asarray(card.center_share, dtype=np.float32))
    return np.zeros_like(log_w) if card.prior == "unbiased" else log_w


# Tuning


def best_tau(logits: Logits, labels: NDArray[np.int64], counts: ArrayLike) -> tuple[float, float, float]:
    """Return the tau that maximizes macro recall of logits + tau * log prior (ties: closest to 0), and both recalls."""
    log_q = log_prior(counts).astype(np.float32)
    right = np.zeros((len(TAUS), len(log_q)))
    for start in range(0, len(logits), _ROWS):
        rows, own = logits[start : start + _ROWS], labels[start : start + _ROWS]
        for k, tau in enumerate(TAUS.astype(np.float32)):
            right[k] += np.bincount(own[(rows + tau * log_q).argmax(1) == own], minlength=len(log_q))
    images = np.bincount(labels, minlength=len(log_q))
    macro = (right[:, images > 0] / images[images > 0]).mean(1).round(12)
    best = min(range(len(TAUS)), key=lambda k: (-macro[k], abs(TAUS[k]), TAUS[k]))
    return float(TAUS[best]), float(macro[TAUS == 0][0]), float(macro[best])


def write_tuned(folder: Path, tuned: Tuned) -> None:
    """Store a tuned prior with its run."""
    write_atomic(folder / FILE, json.dumps(asdict(tuned), indent=1))


def read_tuned(folder: Path) -> Tuned | None:
    """Return the prior that was tuned for a run, or None."""
    path = folder / FILE
    return read_card(Tuned, json.loads(path.read_text()), str(path)) if path.is_file() else None


def describe_tuned(tuned: Tuned) -> str:
    """Return a line about a tuned prior."""
    first = "unbiased, then " if tuned.unbiased else ""
    return (
        f"prior tuned on validation data: {first}logits {tuned.tau:+.2f} * log prior "
        f"(macro recall there {100 * tuned.val_macro:.1f}%, {100 * tuned.val_macro_before:.1f}% without)"
    )


def no_validation() -> UserError:
    return UserError(
        "tuning a prior needs validation data, and there is none",
        "hold some out when training: --validation 0.1, or add a folder val beside train and test",
    )
