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


@pytest.mark.parametrize(("classes", "images"), [(2, 4000), (6, 4000), (100, 2000)])
def test_the_doubt_about_images_that_are_all_right_moves_a_calibrated_set_by_less_than_a_percent(
    classes: int, images: int
) -> None:
    true = np.random.default_rng(0).normal(size=(images, classes)) * 3
    labels = drawn(true, 1)
    best = fit_factor(true, labels, wrong=0.0)  # the lowest cross entropy of the labels alone
    assert fit_factor(true, labels) == pytest.approx(best, rel=0.01)


@pytest.mark.parametrize("classes", [2, 10])
def test_images_that_are_all_right_give_no_certainty(classes: int) -> None:
    """Of n images that are all right, the next is wrong with about 1 / (n + 2), not with 0."""
    for images in (4, 40):
        labels = np.arange(images) % classes
        logits = 5 * np.eye(classes)[labels]
        p = np.exp(fit_factor(logits, labels) * logits)
        p /= p.sum(1, keepdims=True)
        np.testing.assert_allclose(1 - p.max(1), 1 / (images + 2), rtol=0.01)
    weights = np.array([1.0] * 36 + [9.0] * 4)  # as sure as 14.4 of the same weight, by Kish
    assert fit_factor(logits, labels, weights) == pytest.approx(fit_factor(logits[:14], labels[:14]), rel=0.02)


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
