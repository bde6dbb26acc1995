"""Calibration of a run: factors on its logits, and the closed-form classifier that may be added."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load, save

from gpaco.errors import UserError
from gpaco.metrics.calibration import balanced_weights, fit_factors
from gpaco.models.gaussian import Gaussian, gaussian_from
from gpaco.system.files import write_atomic
from gpaco.tasks.classification.card import Calibration, Card
from gpaco.tasks.classification.logits import Logits
from gpaco.tasks.classification.priors import log_assumed
from gpaco.training.card import read_card

FILE = "calibration.json"
GAUSSIAN = "gaussian.safetensors"


def fit_calibration(
    card: Card, labels: NDArray[np.int64], head: Logits | None, gaussian: Logits | None, *, held_out: bool = True
) -> Calibration:
    """Return factors for the logits of held-out images; classes weigh as the logits assume.

    Args:
        head: logits of the trained head, or None.
        gaussian: logits of the closed-form classifier, which assume uniform classes; None if they are not added.
        held_out: False for training images, whose errors say nothing: half of the predictions then count as wrong.
    """
    weights = balanced_weights(labels, len(card.classes))
    if gaussian is None:
        weights = weights * np.exp(log_assumed(card))[labels]
    if head is not None and gaussian is not None:
        head = for_uniform(card, head)
    given = [part for part in (head, gaussian) if part is not None]
    factors = iter(fit_factors(given, labels, weights, None if held_out else 0.5))
    one, other = (0.0 if part is None else next(factors) for part in (head, gaussian))
    images = len(labels) if held_out else 0
    return Calibration(step=card.step, head=one, gaussian=other, images=images, assumes=card.assumes)


def for_uniform(card: Card, head: Logits) -> Logits:
    """Return the logits of a head adjusted to uniform classes, as the closed form assumes."""
    if card.assumes == "uniform":
        return head
    logits: Logits = head - log_assumed(card).astype(np.float32)
    return logits


def write_calibration(folder: Path, calibration: Calibration, gaussian: Gaussian | None) -> Calibration:
    """Store a calibration with its run, and return it with the SHA-256 of the closed-form classifier."""
    if gaussian is not None:
        content = save({name: tensor.cpu().contiguous() for name, tensor in gaussian.state_dict().items()})
        calibration = replace(calibration, sha256=hashlib.sha256(content).hexdigest())
        write_atomic(folder / GAUSSIAN, content)
    write_atomic(folder / FILE, json.dumps(asdict(calibration), indent=1))
    return calibration


def read_calibration(folder: Path, step: int) -> tuple[Calibration | None, Gaussian | None]:
    """Return the calibration of a checkpoint and its closed-form classifier, each or None."""
    path = folder / FILE
    if not path.is_file():
        return None, None
    found = read_card(Calibration, json.loads(path.read_text()), str(path))
    if found.step != step:
        return None, None
    if not found.sha256:
        return found, None
    stored = folder / GAUSSIAN
    content = stored.read_bytes() if stored.is_file() else b""
    if hashlib.sha256(content).hexdigest() != found.sha256:
        raise UserError(f"{stored} is missing or has changed since it was written", "restore it from a backup")
    return found, gaussian_from(load(content))
