"""Validation and test splits taken from training data, and subsets, class by class."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpaco.data.samples import AnySplits, Splits
from gpaco.errors import UserError

Indices = npt.NDArray[np.int64]


def by_class(labels: npt.ArrayLike) -> list[Indices]:
    """Return the sorted indices of each class, from 0 to the largest label."""
    labels = np.asarray(labels, np.int64)
    counts = np.bincount(labels)
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])


def stratified_split(
    labels: npt.ArrayLike, fraction: float, seed: int, *, stay: npt.NDArray[np.bool_] | None = None, smallest: int = 4
) -> tuple[Indices, Indices]:
    """Return the indices to keep and those to hold out: `fraction` of each class, rounded, drawn by `seed`.

    A class of `smallest` or more images holds out at least one, so that it can be evaluated. The last image of a class
    is never held out, and neither are images marked in `stay`.

    >>> keep, held = stratified_split([0] * 10 + [1] * 4 + [2], 0.2, seed=0)
    >>> len(keep), np.asarray([0] * 10 + [1] * 4 + [2])[held].tolist()
    (12, [0, 0, 1])
    """
    held = np.zeros(np.size(labels), bool)
    for c, own in enumerate(by_class(labels)):
        # RandomState, since its numbers do not change between versions of NumPy.
        candidates = own if stay is None else own[~stay[own]]
        drawn = np.random.RandomState([seed, c]).permutation(candidates)
        least = int(len(own) >= smallest and fraction > 0)
        wanted = max(int(len(own) * fraction + 0.5), least)
        held[drawn[: max(min(wanted, len(own) - 1), 0)]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def stratified_folds(labels: npt.ArrayLike, number: int, seed: int, *, digests: Sequence[str] | None = None) -> Indices:
    """Return the fold of each image, 0 to number - 1; -1 (no fold) for the only image of a class.

    With `digests` of the images, all copies of an image in a class are in the same fold.

    >>> folds = stratified_folds([0] * 10 + [1] * 2 + [2], 5, seed=0)
    >>> np.bincount(folds[:10]).tolist(), len(set(folds[10:12])), int(folds[12])
    ([2, 2, 2, 2, 2], 2, -1)
    >>> stratified_folds([0, 0, 0], 5, seed=0, digests=["a", "b", "a"]).tolist()
    [0, 1, 0]
    """
    folds = np.full(np.size(labels), -1, np.int64)
    seen: dict[str, int] = {}  # the first image with these bytes
    images = np.array([i if digests is None else seen.setdefault(digests[i], i) for i in range(len(folds))], np.int64)
    first = 0  # the next fold in turn, so that all get the same number of images
    for c, own in enumerate(by_class(labels)):
        different, image = np.unique(images[own], return_inverse=True)
        if len(different) > 1:
            place = np.empty(len(different), np.int64)
            place[np.random.RandomState([seed, c]).permutation(len(different))] = np.arange(len(different))
            folds[own] = (first + place[image]) % number
            first += len(different)
    return folds


def stratified_subset(labels: Indices, n: int, seed: int) -> Indices:
    """Return `n` sorted indices in which every class has its share, and at least one image if `n` allows it.

    >>> labels = np.array([0] * 90 + [1] * 9 + [2])
    >>> np.bincount(labels[stratified_subset(labels, 10, seed=0)]).tolist()
    [8, 1, 1]
    """
    if n < 1:
        raise UserError(f"a subset needs at least 1 image, got {n}", "for example --subset 1000")
    order = np.random.RandomState([seed % 2**32]).permutation(len(labels))
    shuffled = [order[own] for own in by_class(labels[order]) if len(own)]
    places = np.concatenate([np.arange(len(own)) / len(own) for own in shuffled])
    first = np.argsort(places, kind="stable")[:n]
    return np.sort(np.concatenate(shuffled)[first])


def balanced_subset(labels: Indices, n: int, seed: int) -> Indices:
    """Return up to `n` indices: one of every class, then a second one of every class, and so on.

    Each class is shuffled, and any prefix is spread over the classes as evenly as possible.

    >>> labels = np.array([0] * 50 + [1, 1, 2])
    >>> labels[balanced_subset(labels, 7, seed=0)].tolist()
    [1, 2, 0, 1, 0, 0, 0]
    """
    if n < 1 or len(labels) == 0:
        raise UserError(f"{n} of {len(labels)} images cannot be sampled", "give at least one image")
    draw = np.random.default_rng(seed)
    mixed = draw.permutation(len(labels))
    mixed = mixed[np.argsort(labels[mixed], kind="stable")]
    ordered = labels[mixed]
    rank = np.arange(len(labels)) - np.searchsorted(ordered, ordered)  # within its class
    place = draw.permutation(int(labels.max()) + 1)[ordered]
    return np.asarray(mixed[np.lexsort((place, rank))][:n])


def with_drawn(
    splits: Splits, name: str, title: str, fraction: float, seed: int, digests: Sequence[str] | None
) -> Splits:
    """Return the splits with the split `name` drawn from the training images; copies of an image stay in training.

    `digests` are those of the training images.
    """
    _, held = stratified_split(splits.train.labels, fraction, seed, stay=repeated(digests))
    if not len(held):
        return splits.noting(f"{title} every class has too few images to hold any out")
    note = f"{title} {len(held):,} of {len(splits.train):,} training images, {fraction:.0%} of each class, seed {seed}"
    return hold_back(splits, name, held, note)


def hold_back(splits: AnySplits, name: str, held: Indices, note: str) -> AnySplits:
    """Return the splits with the training images at `held` moved to the split `name`."""
    keep = np.setdiff1d(np.arange(len(splits.train)), held)
    parts: dict[str, Any] = {"train": splits.train.subset(keep), name: splits.train.subset(held)}
    return replace(splits, held=(*splits.held, name), **parts).noting(note)


def with_val_as_test(splits: AnySplits) -> AnySplits:
    """Return the splits with validation as test, if there is no test split: reported data must not select anything."""
    if splits.test is not None or splits.val is None:
        return splits
    note = "test: none given; the validation split takes its place and selects nothing"
    return replace(splits, val=None, test=splits.val).noting(note)


def repeated(digests: Sequence[str] | None) -> npt.NDArray[np.bool_] | None:
    """Return which digests occur more than once; None without digests."""
    if digests is None:
        return None
    _, inverse, counts = np.unique(np.asarray(digests), return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse] > 1)
