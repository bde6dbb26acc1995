"""Duplicate images within a split, in two classes, or in two splits (leaks); and the record that a run keeps."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpaco.data.inspection import digests, over_parts
from gpaco.data.samples import Splits
from gpaco.errors import UserError
from gpaco.system.progress import Progress, no_progress

PUBLISHED = ("CIFAR-10", "CIFAR-100", "idx files", "scikit-learn's digits")  # readers with published splits


def copies(splits: Splits, found: Mapping[str, Sequence[str]]) -> dict[str, list[list[str]]]:
    """Return groups of images with the same bytes, each image as `split: name`.

    `found` has the digests of each split, as `over_parts(splits, digests)` returns them.
    """
    parts = dict(splits.parts())
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for split in parts:
        for i, digest in enumerate(found[split]):
            if digest:
                places[digest].append((split, i))
    groups: dict[str, list[list[str]]] = {"within_a_part": [], "in_two_classes": [], "in_two_parts": []}
    for group in places.values():
        if len(group) == 1:
            continue
        named = [(split, parts[split].names[i]) for split, i in group]
        names = [name if name.startswith(f"{split}/") else f"{split}: {name}" for split, name in named]
        inside = len({split for split, _ in group})
        if inside < len(group):
            groups["within_a_part"].append(names)
        if len({int(parts[split].labels[i]) for split, i in group}) > 1:
            groups["in_two_classes"].append(names)
        if inside > 1:
            groups["in_two_parts"].append(names)
    return groups


def refuse_leaks(splits: Splits, *, progress: Progress = no_progress) -> Splits:
    """Return the same splits, or raise a `UserError` if an image is in more than one split.

    All processes must call it: each reads its share of the files.

    Some published splits leak (10 images of CIFAR-100): that is only noted.
    """
    groups = copies(splits, over_parts(splits, partial(digests, shared=True), progress))["in_two_parts"]
    if not groups:
        return splits
    if splits.reader in PUBLISHED:
        return splits.noting(f"leak: {len(groups)} images are in more than one split, as published")
    raise UserError(
        f"{len(groups)} image{'' if len(groups) == 1 else 's'} in more than one split, "
        f"for instance {' = '.join(groups[0][:3])}",
        "remove them from one split (gpaco check lists them), or allow it: --set data.allow_leakage=true",
    )


def refuse_one_class(splits: Splits) -> None:
    """Raise an error if all training images are of one class."""
    there = [splits.classes[c] for c in np.flatnonzero(splits.train.counts)]
    if len(there) == 1:
        raise UserError(
            f"all training images are of one class, {there[0]!r}: there is nothing to classify",
            f"give a folder of class folders: perhaps {_class_folders(splits)}"
            if splits.reader.startswith("folder")
            else "give images of two or more classes",
        )


def _class_folders(splits: Splits) -> str:
    """Return where the class folders may be if the given folder is the wrong one: further inside or around it."""
    names = splits.train.names
    common = os.path.commonpath([os.path.dirname(name) for name in names])
    inside = {name.removeprefix(f"{common}/").split("/")[0] for name in names if os.path.dirname(name) != common}
    return f"{common!r} in it" if len(inside) > 1 else "its parent"


def record(splits: Splits, *, limit: int) -> dict[str, Any]:
    """Return what a run records about its data, ready for JSON: reader, splits with counts and a hash, copies.

    The hash covers the names and labels of a split, in order. `copies` is None for more than `limit` images.
    """
    parts = {
        name: {"images": len(part), "counts": part.counts.tolist(), "sha256": part.list_hash}
        for name, part in splits.parts()
    }
    few = sum(len(part) for _, part in splits.parts()) <= limit
    found = copies(splits, over_parts(splits, digests)) if few else None
    return {"reader": splits.reader, "notes": list(splits.notes), "parts": parts, "copies": found}
