"""Fitted factors on logits."""

import numpy as np
import pytest

from gpaco.metrics.calibration import balanced_weights, cross_entropy, fit_factor, fit_factors
from gpaco.metrics.classification import ece


def drawn(logits: np.ndarray, seed: int) -> np.ndarray:
    """Labels drawn from the softmax of the logits: these are calibrated."""
    rng = np.random.default_rng(seed)
    return (logits + rng.gumbel(size=logits.shape)).argmax(1)


def test_the_factor_undoes_a_temperature() -> None:
    true = np.random.default_rng(0).normal(size=(5000, 6)) * 2
    labels = drawn(true, 1)
    for factor in (0.1, 1.0, 8.0):
        assert fit_factor(true / factor, labels) == pytest.approx(factor, rel=0.05)


def test_the_sum_of_two_parts_is_calibrated() -> None:
    rng = np.random.default_rng(0)
    true = rng.normal(size=(5000, 6)) * 2
    labels = drawn(true, 1)
    parts = [7 * (true + rng.normal(size=true.shape)), 0.2 * (true + rng.normal(size=true.shape))]
    factors = fit_factors(parts, labels, np.ones(len(labels)))
    summed = sum(part * factor for part, factor in zip(parts, factors, strict=True))
    p = np.exp(summed - summed.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    assert ece(p.max(1), p.argmax(1) == labels) < 0.03
    alone = [cross_entropy(part * fit_factor(part, labels), labels, np.ones(5000)) for part in parts]
    assert cross_entropy(summed, labels, np.ones(5000)) < min(alone)


def test_balanced_weights_give_every_class_the_same() -> None:
    labels = np.array([0, 0, 0, 2])
    weights = balanced_weights(labels, 3)
    assert weights[:3].sum() == weights[3] == pytest.approx(1)
