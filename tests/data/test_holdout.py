"""Splits that never empty a class, and the long tails of CIFAR-LT."""

from pathlib import Path

import numpy as np
import pytest
from helpers.images import class_folders
from hypothesis import given
from hypothesis import strategies as st

from gpaco.data.holdout import by_class, stratified_split, with_drawn
from gpaco.data.inspection import digests
from gpaco.data.longtail import class_sizes, long_tailed
from gpaco.data.readers.read import read
from gpaco.data.samples import Samples, Splits
from gpaco.recipes.settings import Data
from gpaco.tasks.classification.splits import with_reported, with_selecting


def splits_of(counts: list[int]) -> Splits:
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 2, 2, 3), np.uint8)  # no two are the same
    return Splits(Samples(labels, tuple(map(str, range(len(counts)))), images=images), None, None, "test")


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.floats(0, 0.99), st.integers(0, 5))
def test_a_split_has_every_index_once_and_leaves_an_image_in_every_class(
    counts: list[int], fraction: float, seed: int
) -> None:
    labels = np.random.RandomState(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    if not len(labels):
        return
    keep, held = stratified_split(labels, fraction, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate([keep, held])), np.arange(len(labels)))
    for c, count in enumerate(counts):
        kept = int((labels[keep] == c).sum())
        assert kept >= min(count, 1)
        assert abs((count - kept) - fraction * count) <= 1


def test_small_classes_keep_most_of_their_images() -> None:
    splits = splits_of([1, 2, 3, 4, 5, 10, 100])
    both = with_selecting(with_reported(splits, Data()), Data())
    assert both.test.counts.tolist() == [0, 0, 1, 1, 1, 2, 20]
    assert both.val.counts.tolist() == [0, 0, 0, 0, 1, 1, 8]
    assert both.train.counts.tolist() == [1, 2, 2, 3, 3, 7, 72]
    assert both.notes == (
        "test: none given; 25 of 125 training images, 20% of each class, seed 0",
        "validation: 10 of 100 training images, 10% of each class, seed 0",
    )


def test_the_seed_decides_and_order_is_kept() -> None:
    labels = np.tile(np.arange(5), 40)
    first, again, other = (stratified_split(labels, 0.2, seed)[1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert first.tolist() != other.tolist()
    assert (np.diff(first) > 0).all()
    assert first[:6].tolist() == [2, 19, 33, 35, 36, 37]  # for ever: runs that are resumed depend on it


def test_given_parts_are_left_alone() -> None:
    splits, settings = splits_of([20, 20]), Data(validation=0.1)
    given_test = Splits(splits.train, None, splits.train.subset([0, 30]), "test")
    assert with_reported(given_test, settings) is given_test
    validated = with_selecting(given_test, settings)
    assert validated.test is given_test.test
    assert validated.val is not None
    assert with_selecting(validated, settings) is validated
    given_val = Splits(splits.train, splits.train.subset([0]), None, "test")
    assert with_reported(given_val, Data(evaluate_on="val")) is given_val
    assert with_selecting(splits, Data(validation=0)) is splits


def test_classes_that_are_all_too_small_give_no_validation_part_and_a_note() -> None:
    splits = with_selecting(with_reported(splits_of([1, 1, 2]), Data()), Data())
    assert splits.val is None
    assert splits.test is None
    assert splits.notes == (
        "test: none given; every class has too few images to hold any out",
        "validation: every class has too few images to hold any out",
    )


def test_images_that_occur_twice_are_never_held_out(tmp_path: Path) -> None:
    root = class_folders(tmp_path, {"a": 10, "b": 10})
    for i in range(5):
        (root / "a" / f"copy{i}.png").write_bytes((root / "a" / f"{i}.png").read_bytes())
        (root / "b" / f"copy{i}.png").write_bytes((root / "a" / f"{i}.png").read_bytes())
    splits = read(root)
    both = with_drawn(splits, "val", "validation:", 0.3, 0, digests(splits.train))
    assert both.val.counts.tolist() == [5, 5]  # 0.3 of 15, rounded; all there are of a
    assert not set(digests(both.val)) & set(digests(both.train))


def test_by_class_gives_the_indices_of_each_class() -> None:
    assert [own.tolist() for own in by_class([2, 0, 2, 2])] == [[1], [], [0, 2, 3]]


@pytest.mark.parametrize(("factor", "images", "smallest"), [(100, 10_847, 5), (50, 12_608, 10), (10, 19_573, 50)])
def test_cifar_100_lt_has_its_usual_counts(factor: int, images: int, smallest: int) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 500))
    chosen = long_tailed(labels, factor)
    counts = np.bincount(labels[chosen])
    assert len(chosen) == len(set(chosen.tolist())) == images
    assert (counts[0], counts[-1]) == (500, smallest)
    assert (np.diff(counts) <= 0).all()


def test_cifar_10_lt_has_its_usual_counts() -> None:
    labels = np.repeat(np.arange(10), 5000)
    assert np.bincount(labels[long_tailed(labels, 100)]).tolist() == [
        5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50,
    ]  # fmt: skip


def test_the_images_are_those_of_the_usual_code() -> None:
    """Cao et al.: the global generator is seeded once, and the indices of each class in turn are shuffled by it."""
    labels = np.random.default_rng(1).integers(0, 7, 3000)
    largest = np.bincount(labels).max()
    np.random.seed(3)
    expected = []
    for c in range(7):
        indices = np.where(labels == c)[0]
        np.random.shuffle(indices)
        expected += indices[: int(largest * 0.05 ** (c / 6))].tolist()
    state = np.random.get_state()[1].tolist()  # type: ignore[index]
    assert long_tailed(labels, 20, seed=3).tolist() == expected
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index]
    assert long_tailed(labels, 20, seed=4).tolist() != expected


def test_a_class_that_has_less_than_it_should_gives_all_and_none_is_emptied() -> None:
    labels = np.repeat(np.arange(4), [50, 100, 3, 9])
    assert np.bincount(labels[long_tailed(labels, 1000)]).tolist() == [50, 10, 1, 1]
    assert class_sizes(1, 30, 100) == [30]
