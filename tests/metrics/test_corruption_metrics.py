"""Means of errors under corruption, against tables worked out by hand."""

import numpy as np
import pytest

from gpaco.data.corruption.corruptions import CORRUPTIONS
from gpaco.metrics.corruption import ALEXNET, ALEXNET_CLEAN, Errors, group_errors, mce, mean_error, relative_mce

HALF = dict.fromkeys(CORRUPTIONS, 0.5)


def test_a_corruption_has_a_mean_only_if_it_has_all_severities() -> None:
    rows = {("fog", severity): {"error": severity / 10, "few": None} for severity in (1, 2, 3, 4, 5)}
    assert Errors(rows, []).means()["fog"] == pytest.approx(0.3)
    assert Errors(rows, []).means("few")["fog"] is None
    del rows["fog", 5]
    assert Errors(rows, []).means()["fog"] is None


def test_figures_of_a_table_worked_out_by_hand() -> None:
    # Twelve corruptions with an error of 50%, three others with 20, 80 and 65%.
    means = HALF | {"fog": 0.2, "snow": 0.8, "contrast": 0.65}
    assert mean_error(means) == pytest.approx((12 * 0.5 + 0.2 + 0.8 + 0.65) / 15)
    # The baseline makes 40% everywhere but 80% under snow and 50% under contrast.
    baseline = dict.fromkeys(CORRUPTIONS, 0.4) | {"snow": 0.8, "contrast": 0.5}
    ratios = 12 * [0.5 / 0.4] + [0.2 / 0.4, 0.8 / 0.8, 0.65 / 0.5]
    assert mce(means, baseline) == pytest.approx(sum(ratios) / 15)
    # Clean errors 10 and 20%: what is added is 40 against 20 points for the twelve, and so on.
    added = 12 * [0.4 / 0.2] + [0.1 / 0.2, 0.7 / 0.6, 0.55 / 0.3]
    assert relative_mce(means, 0.1, baseline, 0.2) == pytest.approx(sum(added) / 15)


def test_alexnet_scores_one_hundred_percent_against_itself() -> None:
    assert tuple(ALEXNET) == CORRUPTIONS
    assert mce(ALEXNET, ALEXNET) == 1
    assert relative_mce(ALEXNET, ALEXNET_CLEAN, ALEXNET, ALEXNET_CLEAN) == 1
    # Clean 43.5%, as the paper prints it; from 56.5% under brightness to 92.3% under impulse noise.
    assert round(100 * ALEXNET_CLEAN, 1) == 43.5
    assert round(100 * min(ALEXNET.values()), 1) == 56.5
    assert round(100 * max(ALEXNET.values()), 1) == 92.3


def test_a_mean_of_fewer_corruptions_is_none() -> None:
    for name in CORRUPTIONS:
        fewer = {other: 0.5 for other in CORRUPTIONS if other != name}
        assert mean_error(fewer) is mce(fewer, HALF) is mce(HALF, fewer) is None
        assert relative_mce(fewer, 0.1, HALF, 0.1) is relative_mce(HALF, 0.1, fewer, 0.1) is None
        assert mean_error(HALF | {name: None}) is None


def test_a_baseline_that_is_never_wrong_or_never_hurt_gives_no_figure() -> None:
    assert mce(HALF, HALF | {"fog": 0.0}) is None
    assert relative_mce(HALF, 0.1, HALF | {"fog": 0.1}, 0.1) is None
    assert relative_mce(HALF, 0.1, HALF | {"fog": 0.05}, 0.1) is None
    assert relative_mce(HALF, None, HALF, 0.1) is relative_mce(HALF, 0.1, HALF, None) is None


def test_groups_are_means_of_per_class_errors_and_none_where_empty() -> None:
    # Class 0 (many) is wrong once in four, 1 (few) always, 2 (few) never; 3 (medium) has no image.
    labels = np.array([0, 0, 0, 0, 1, 2, 2])
    found = group_errors([0, 0, 0, 3, 0, 2, 2], labels, [500, 3, 5, 50], 100, 20)
    assert found == {"n": 7, "error": 2 / 7, "many": 0.25, "medium": None, "few": 0.5}
    assert group_errors([], np.zeros(0, np.int64), [1, 2], 100, 20)["error"] is None
