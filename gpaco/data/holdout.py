"""Validation and test parts taken from training data, and subsets, class by class."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpaco.data.samples import Splits
from gpaco.errors import UserError

Indices = npt.NDArray[np.int64]


def by_class(labels: npt.ArrayLike) -> list[Indices]:
    """The indices of each class, 0 to the largest label, each in rising order."""
    labels = np.asarray(labels, np.int64)
    counts = np.bincount(labels)
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])


def stratified(
    labels: npt.ArrayLike, fraction: float, seed: int, *, stay: npt.NDArray[np.bool_] | None = None
) -> tuple[Indices, Indices]:
    """Indices to keep and indices to hold out: `fraction` of each class, rounded, drawn by `seed`.

    A class of four or more images holds out at least one, so that it can be measured; smaller classes only what
    rounding gives; the last image of a class is never taken. Images marked in `stay` are not held out.

    >>> keep, held = stratified([0] * 10 + [1] * 4 + [2], 0.2, seed=0)
    >>> len(keep), np.asarray([0] * 10 + [1] * 4 + [2])[held].tolist()
    (12, [0, 0, 1])
    """
    if not 0 <= fraction < 1:
        raise UserError(f"the fraction to hold out must be at least 0 and below 1, got {fraction}", "0.1 is usual")
    held = np.zeros(np.size(labels), bool)
    for c, own in enumerate(by_class(labels)):
        # RandomState, for its numbers are promised never to change with the version of numpy.
        candidates = own if stay is None else own[~stay[own]]
        drawn = np.random.RandomState([seed, c]).permutation(candidates)
        held[drawn[: _number_held(len(own), fraction)]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def _number_held(count: int, fraction: float) -> int:
    wanted = int(count * fraction + 0.5)
    if count >= 4 and fraction > 0:
        wanted = max(wanted, 1)
    return max(min(wanted, count - 1), 0)


def stratified_subset(labels: Indices, n: int, seed: int) -> Indices:
    """`n` indices, rising, in which every class has its share, and at least one image as long as there is room.

    >>> labels = np.array([0] * 90 + [1] * 9 + [2])
    >>> np.bincount(labels[stratified_subset(labels, 10, seed=0)]).tolist()
    [8, 1, 1]
    """
    if n < 1:
        raise UserError(f"a subset of {n} images is none", "--subset 1000 is usual")
    order = np.random.RandomState([seed % 2**32]).permutation(len(labels))
    shuffled = [order[own] for own in by_class(labels[order]) if len(own)]
    places = np.concatenate([np.arange(len(own)) / len(own) for own in shuffled])
    first = np.argsort(places, kind="stable")[:n]
    return np.sort(np.concatenate(shuffled)[first])


def with_validation(
    splits: Splits, fraction: float = 0.1, seed: int = 0, *, digests: Sequence[str] | None = None
) -> Splits:
    """The same with a validation part, taken from the training images if there is none. The test part stays.

    With `digests` of the training images, those that occur more than once all stay in training.
    """
    if splits.val is not None or fraction == 0:
        return splits
    keep, held = stratified(splits.train.labels, fraction, seed, stay=repeated(digests))
    note = f"validation: {len(held)} of {len(splits.train)} training images, {fraction:.0%} of each class, seed {seed}"
    if not len(held):
        return splits.noting("validation: none, every class has too few images")
    return _held_back(splits, "val", keep, held, note)


def with_test(splits: Splits, fraction: float = 0.2, seed: int = 0, *, digests: Sequence[str] | None = None) -> Splits:
    """The same with a test part taken from the training images, if there is neither test nor validation data."""
    if splits.test is not None or splits.val is not None or fraction == 0:
        return splits
    keep, held = stratified(splits.train.labels, fraction, seed, stay=repeated(digests))
    note = f"test: none given; {len(held)} of {len(splits.train)} images, {fraction:.0%} of each class, seed {seed}"
    if not len(held):
        return splits.noting("test: none, every class has too few images")
    return _held_back(splits, "test", keep, held, note)


def _held_back(splits: Splits, name: str, keep: Indices, held: Indices, note: str) -> Splits:
    parts: dict[str, Any] = {"train": splits.train.subset(keep), name: splits.train.subset(held)}
    return replace(splits, held=(*splits.held, name), **parts).noting(note)


def with_val_as_test(splits: Splits) -> Splits:
    """The same with the validation part as the test part, if there is no other: what is reported chooses nothing."""
    if splits.test is not None or splits.val is None:
        return splits
    note = "test: none given; the validation split is reported in its place and selects nothing"
    return replace(splits, val=None, test=splits.val).noting(note)


def repeated(digests: Sequence[str] | None) -> npt.NDArray[np.bool_] | None:
    """Which of the digests occur more than once; None if nobody has looked."""
    if digests is None:
        return None
    _, inverse, counts = np.unique(np.asarray(digests), return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse] > 1)
