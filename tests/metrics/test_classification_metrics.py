"""Metrics by hand on small cases, and against scikit-learn, torchmetrics and published numbers."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn

from gpaco.errors import UserError
from gpaco.metrics.classification import adjust, ece, reversed_prior, reweighted_accuracy, summarize
from gpaco.metrics.groups import groups
from gpaco.metrics.intervals import wilson


def case(n: int, c: int, seed: int = 0, absent: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits that are right about half of the time, labels without the absent classes, long-tailed counts."""
    draw = np.random.default_rng(seed)
    labels = draw.choice([k for k in range(c) if k not in absent], n)
    logits = draw.normal(size=(n, c)).astype(np.float32) * 2
    logits[np.arange(n), labels] += draw.exponential(3, n).astype(np.float32)
    return logits, labels, (500 * 0.01 ** (np.arange(c) / max(c - 1, 1))).astype(int)


def names(c: int) -> list[str]:
    return [f"class {k}" for k in range(c)]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "c"), [(2000, 10), (5000, 37), (300, 6), (4100, 5)])
def test_a_summary_agrees_with_scikit_learn_and_torchmetrics(n: int, c: int) -> None:
    logits, labels, counts = case(n, c)
    ours = summarize(logits, labels, counts, names(c))
    predictions = logits.argmax(1)
    recalls = sklearn.recall_score(labels, predictions, average=None, labels=range(c))
    per_class = ours["per_class"]

    assert ours["n"] == n
    assert ours["top1"] == pytest.approx(sklearn.accuracy_score(labels, predictions), abs=1e-12)
    assert ours["macro"] == pytest.approx(sklearn.balanced_accuracy_score(labels, predictions), abs=1e-12)
    assert ours["macro_f1"] == pytest.approx(sklearn.f1_score(labels, predictions, average="macro"), abs=1e-12)
    assert [row["recall"] for row in per_class] == pytest.approx(recalls)
    assert [row["precision"] for row in per_class] == pytest.approx(
        sklearn.precision_score(labels, predictions, average=None)
    )
    assert [row["f1"] for row in per_class] == pytest.approx(sklearn.f1_score(labels, predictions, average=None))
    if c > 5:
        top5 = sklearn.top_k_accuracy_score(labels, logits, k=5, labels=range(c))
        assert ours["top5"] == pytest.approx(top5, abs=1e-12)
    else:
        assert ours["top5"] == 1.0

    # Seven seconds, which every process would need to collect the tests.
    from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError, MulticlassF1Score

    scores, truth = torch.from_numpy(logits), torch.from_numpy(labels)
    for value, metric in (
        (ours["macro"], MulticlassAccuracy(c, average="macro")),
        (ours["top1"], MulticlassAccuracy(c, average="micro")),
        (ours["macro_f1"], MulticlassF1Score(c, average="macro")),
        (ours["ece"], MulticlassCalibrationError(c, n_bins=15, norm="l1")),
    ):
        assert value == pytest.approx(metric(scores, truth).item(), abs=1e-6)

    group = groups(counts)
    for name in ("many", "medium", "few"):
        inside = group == name
        assert ours["groups"][name] == inside.sum()
        if inside.any():
            assert ours[name] == pytest.approx(recalls[inside].mean())
            rows = inside[labels]
            theirs = MulticlassCalibrationError(c, n_bins=15, norm="l1")(scores[rows], truth[rows]).item()
            assert ours[f"ece_{name}"] == pytest.approx(theirs, abs=1e-6)


def test_the_cuts_are_above_100_and_below_20_with_both_ends_in_the_middle() -> None:
    assert groups([5000, 101, 100, 50, 20, 19, 0]).tolist() == ["many"] * 2 + ["medium"] * 3 + ["few"] * 2
    assert groups([10, 5, 4], many=5, few=5).tolist() == ["many", "medium", "few"]


def test_an_empty_group_is_none_and_never_0() -> None:
    logits, labels, _ = case(200, 4)
    ours = summarize(logits, labels, [500, 400, 300, 200], names(4))
    assert (ours["medium"], ours["few"], ours["ece_medium"], ours["ece_few"]) == (None, None, None, None)
    assert ours["groups"] == {"many": 4, "medium": 0, "few": 0}
    assert ours["many"] == ours["macro"]


def test_a_class_without_test_images_has_no_recall_and_is_left_out_of_every_mean() -> None:
    logits, labels, _ = case(500, 6, absent=(1, 5))
    counts = [500, 300, 200, 100, 50, 5]
    ours = summarize(logits, labels, counts, names(6))
    predictions = logits.argmax(1)
    present = [0, 2, 3, 4]
    assert ours["absent"] == 2
    for row in (ours["per_class"][1], ours["per_class"][5]):
        assert (row["test"], row["recall"], row["interval"], row["f1"]) == (0, None, None, None)
        assert row["precision"] == 0  # it was predicted, and always wrongly
    recalls = sklearn.recall_score(labels, predictions, average=None, labels=present)
    assert ours["macro"] == pytest.approx(recalls.mean())
    assert ours["geometric_mean"] == pytest.approx(np.prod(recalls) ** 0.25)
    assert ours["macro_f1"] == pytest.approx(sklearn.f1_score(labels, predictions, average="macro", labels=present))
    assert ours["groups"]["few"] == 1
    assert ours["few"] is None  # its only class cannot be measured


def test_no_test_image_at_all_gives_none_everywhere() -> None:
    ours = summarize(np.zeros((0, 3)), np.zeros(0, np.int64), [3, 2, 1], names(3))
    assert ours["n"] == 0
    assert ours["absent"] == 3
    numbers = ("top1", "top5", "many", "medium", "few", "macro", "macro_f1", "geometric_mean", "ece", "long_tailed")
    assert [ours[name] for name in numbers] == [None] * len(numbers)


def test_a_summary_is_plain_json() -> None:
    logits, labels, counts = case(300, 6, absent=(2,))
    ours = summarize(logits, labels, counts, names(6))
    assert json.loads(json.dumps(ours, allow_nan=False)) == ours


def test_the_geometric_mean_is_0_as_soon_as_one_class_is_never_found() -> None:
    logits = np.eye(3)[[0, 0, 2]]
    assert summarize(logits, [0, 1, 2], [9, 9, 9], names(3))["geometric_mean"] == 0
    assert summarize(np.eye(3), [0, 1, 2], [9, 9, 9], names(3))["geometric_mean"] == 1


def test_a_class_never_predicted_has_no_precision_and_an_f1_of_0() -> None:
    row = summarize(np.eye(3)[[0, 0, 2]], [0, 1, 2], [9, 9, 9], names(3))["per_class"][1]
    assert (row["recall"], row["precision"], row["f1"]) == (0, None, 0)


def test_equal_logits_go_to_the_first_class_in_top_1_and_in_top_5_alike() -> None:
    ours = summarize(np.zeros((8, 8)), np.arange(8), np.ones(8), names(8))
    assert (ours["top1"], ours["top5"]) == (1 / 8, 5 / 8)


def test_blocks_of_rows_change_nothing_and_half_precision_is_read_as_what_it_is() -> None:
    logits, labels, counts = case(5000, 8)
    whole = summarize(logits, labels, counts, names(8))
    parts = [summarize(logits[s], labels[s], counts, names(8)) for s in (slice(0, 2500), slice(2500, 5000))]
    assert whole["top1"] == pytest.approx(np.mean([part["top1"] for part in parts]))
    half = logits.astype(np.float16)
    assert summarize(half, labels, counts, names(8)) == summarize(half.astype(float), labels, counts, names(8))


def test_wilsons_interval_has_the_published_values() -> None:
    # Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for (k, n), expected in {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }.items():
        assert wilson(k, n) == pytest.approx(expected, abs=5e-5)
    assert wilson(0, 0) is None
    assert wilson(7, 7)[1] == 1.0


@given(st.integers(0, 400), st.integers(1, 400))
def test_wilsons_interval_holds_the_rate_and_mirrors(k: int, n: int) -> None:
    k = min(k, n)
    low, high = wilson(k, n)
    assert 0 <= low <= k / n <= high <= 1
    assert wilson(n - k, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_calibration_error_by_hand() -> None:
    # Two bins: three images at 0.9 of which two are right, one image at 0.3 that is wrong.
    assert ece([0.9, 0.9, 0.9, 0.3], [1, 1, 0, 0], bins=2) == pytest.approx(0.75 * abs(2 / 3 - 0.9) + 0.25 * 0.3)
    assert ece([1.0, 1.0], [True, True]) == 0
    assert ece([], []) is None
    assert ece([0.5], [1], bins=2) == 0.5  # an edge belongs to the bin below it


def test_accuracy_under_a_prior_is_the_accuracy_of_test_images_drawn_with_it() -> None:
    logits, labels, counts = case(4000, 6)
    ours = summarize(logits, labels, counts, names(6))
    correct = logits.argmax(1) == labels
    for key, prior in (
        ("long_tailed", counts / counts.sum()),
        ("reversed", counts[::-1] / counts.sum()),
    ):
        weights = (prior / np.bincount(labels))[labels]
        assert ours[key] == pytest.approx(sklearn.accuracy_score(labels, logits.argmax(1), sample_weight=weights))
        assert ours[key] == pytest.approx((weights * correct).sum() / weights.sum())
    assert reweighted_accuracy([0.2, np.nan], [0.0, 1.0]) is None


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any), st.randoms())
def test_the_reversed_prior_is_a_distribution_that_does_not_depend_on_the_order_of_classes(
    counts: list[int], random: Any
) -> None:
    prior = reversed_prior(counts)
    assert prior.sum() == pytest.approx(1)
    order = random.sample(range(len(counts)), len(counts))
    assert reversed_prior(np.array(counts)[order]) == pytest.approx(prior[order])
    by_count = np.argsort(counts, kind="stable")
    assert (np.diff(prior[by_count]) <= 1e-15).all()  # never more for a more frequent class
    if len(set(counts)) == len(counts):
        assert sorted(prior) == pytest.approx(sorted(np.array(counts) / sum(counts)))


def test_adjusting_to_a_prior_and_back_changes_nothing_and_is_bayes_rule() -> None:
    logits, _, counts = case(50, 6)
    prior = np.array(counts) / sum(counts)
    train, uniform = np.log(prior), np.log(np.full(6, 1 / 6))
    there = adjust(logits, train, uniform)
    assert there.dtype == np.float32
    assert adjust(there, uniform, train) == pytest.approx(logits, abs=1e-5)
    posterior = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = posterior / prior
    expected /= expected.sum(1, keepdims=True)
    assert np.exp(there) / np.exp(there).sum(1, keepdims=True) == pytest.approx(expected, abs=1e-5)


def test_logits_that_are_not_finite_are_refused_with_a_remedy() -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(UserError, match="not finite") as error:
            summarize(np.array([[0, 1, value]] * 3), [0, 1, 2], [3, 2, 1], names(3))
        assert error.value.remedy
        assert "\n" not in error.value.cause + error.value.remedy


def test_a_class_masked_out_with_minus_infinity_is_fine() -> None:
    logits = np.array([[1.0, -np.inf], [2.0, -np.inf]])
    assert summarize(logits, [0, 1], [5, 5], names(2))["top1"] == 0.5
