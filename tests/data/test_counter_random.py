"""Uniform numbers and orders that are functions of their keys."""

import numpy as np
import pytest

from gpaco.data.counter_random import permutation, uniforms

N = 20_000


def test_rows_depend_on_their_own_index_only() -> None:
    indices = np.array([5, 17, 3, 17, 1_000_000])
    together = uniforms(1, 2, indices, 0, 9)
    for row, index in zip(together, indices, strict=True):
        assert np.array_equal(row, uniforms(1, 2, np.array([index]), 0, 9)[0])
    assert np.array_equal(together[::-1], uniforms(1, 2, indices[::-1], 0, 9))


def test_the_first_columns_do_not_depend_on_the_number_of_columns() -> None:
    indices = np.arange(4)
    assert np.array_equal(uniforms(0, 0, indices, 1, 50)[:, :7], uniforms(0, 0, indices, 1, 7))


def test_each_key_changes_every_number() -> None:
    keys = {"seed": 3, "epoch": 4, "view": 1}
    indices = np.arange(100)
    base = uniforms(indices=indices, count=5, **keys)
    for name, value in keys.items():
        assert (uniforms(indices=indices, count=5, **keys | {name: value + 1}) != base).all()
    assert (uniforms(indices=indices + 1, count=5, **keys) != base).all()
    swapped = uniforms(indices=indices, count=5, seed=4, epoch=3, view=1)
    assert (swapped != base).all()


def test_numbers_are_uniform_in_zero_to_one() -> None:
    numbers = uniforms(7, 0, np.arange(N), 0, 8)
    assert numbers.dtype == np.float64
    assert numbers.min() >= 0
    assert numbers.max() < 1
    for column in numbers.T:
        counts = np.histogram(column, 50, (0, 1))[0]
        chi_square = ((counts - N / 50) ** 2 / (N / 50)).sum()
        assert chi_square < 85.4  # 49 degrees of freedom, p = 0.001
    assert numbers.mean() == pytest.approx(0.5, abs=0.002)
    assert numbers.var() == pytest.approx(1 / 12, abs=0.001)


def test_neighboring_keys_are_not_correlated() -> None:
    indices = np.arange(N)
    base = uniforms(0, 0, indices, 0, 3)
    others = {
        "next column": base[:, 1],
        "column after that": base[:, 2],
        "next index": uniforms(0, 0, indices + 1, 0, 1)[:, 0],
        "next epoch": uniforms(0, 1, indices, 0, 1)[:, 0],
        "next seed": uniforms(1, 0, indices, 0, 1)[:, 0],
        "next view": uniforms(0, 0, indices, 1, 1)[:, 0],
    }
    for name, other in others.items():
        assert abs(np.corrcoef(base[:, 0], other)[0, 1]) < 4 / N**0.5, name
        grid = np.histogram2d(base[:, 0], other, 10, ((0, 1), (0, 1)))[0]
        assert ((grid - N / 100) ** 2 / (N / 100)).sum() < 149, name  # 99 degrees of freedom, p = 0.001


def test_any_integer_is_a_seed() -> None:
    rows = [uniforms(seed, 0, np.array([0]), 0, 4) for seed in (0, -1, 2**63, 2**64 - 2, 12345678901234567890123)]
    assert len({tuple(row[0]) for row in rows}) == 5


def test_numbers_stay_the_same_from_version_to_version() -> None:
    # A change of these numbers would silently change every run that is resumed or repeated.
    found = uniforms(42, 7, np.array([0, 123456]), 1, 2)
    assert (found * 2**53).astype(np.int64).tolist() == [
        [4503488635995156, 646257183284123],
        [1683266763708229, 638517066338564],
    ]
    assert permutation(42, 7, 12).tolist() == [7, 0, 5, 3, 6, 1, 8, 2, 9, 4, 11, 10]


def test_a_permutation_has_every_index_once_and_changes_with_seed_and_epoch() -> None:
    orders = [permutation(seed, epoch, 1000) for seed in range(3) for epoch in range(3)]
    for order in orders:
        assert np.array_equal(np.sort(order), np.arange(1000))
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 4 / 1000**0.5
            assert (one == other).sum() < 10
    assert np.array_equal(permutation(0, 0, 1000), orders[0])
    assert permutation(0, 0, 0).tolist() == []
    assert permutation(0, 0, 1).tolist() == [0]


def test_every_sample_is_equally_likely_at_every_place() -> None:
    places = np.stack([np.argsort(permutation(0, epoch, 20)) for epoch in range(2000)])
    counts = np.stack([np.bincount(column, minlength=20) for column in places.T])
    assert ((counts - 100) ** 2 / 100).sum() < 462  # 361 degrees of freedom, p = 0.0002
