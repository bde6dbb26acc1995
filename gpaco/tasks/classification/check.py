"""What to know about a data set before training: counts, balance, unreadable and odd files, duplicates, leaks."""

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpaco.data.inspection import Inspection, digests, inspect, over_parts, places_of, without
from gpaco.data.readers.read import read
from gpaco.data.samples import BadImage, Splits, some
from gpaco.errors import UserError
from gpaco.metrics.classification import GROUPS
from gpaco.metrics.classification import groups as groups_of
from gpaco.metrics.groups import FEW, MANY, gini, imbalance_factor, one_group
from gpaco.system.progress import Progress
from gpaco.system.words import counted
from gpaco.tasks import report_lines
from gpaco.tasks.classification.defaults import suggest

_PUBLISHED = ("CIFAR-10", "CIFAR-100", "idx files", "scikit-learn's digits")  # readers whose splits are not ours

# Images with the same bytes: (part, index) of each.
_Same = list[tuple[str, int]]


def check(
    data: str | os.PathLike[str] | Splits,
    *,
    root: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    gpu: bool = False,
) -> dict[str, Any]:
    """Return everything there is to know about the data, ready for JSON; `lines` puts it into words.

    Every image is decoded and hashed once. `problems` has what would stop training.
    """
    splits = data if isinstance(data, Splits) else read(data, root=root, allow_empty_classes=True)
    found = over_parts(splits, inspect, progress)
    same = _same_bytes(splits, {name: [one.digest for one in images] for name, images in found.items()})
    counts = splits.train.counts
    facts: dict[str, Any] = {
        "reader": splits.reader,
        "notes": list(splits.notes),
        "classes": len(splits.classes),
        "images": {name: len(part) for name, part in splits.parts()},
        "counts": {name: dict(zip(splits.classes, part.counts.tolist(), strict=True)) for name, part in splits.parts()},
        "imbalance_factor": imbalance_factor(counts),
        "gini": gini(counts),
        "groups": _groups(counts),
        "one_image": [splits.classes[c] for c in np.flatnonzero(counts == 1)],
        "no_image": {
            name: [splits.classes[c] for c in np.flatnonzero(part.counts == 0)] for name, part in splits.parts()
        },
        "bad": _files(splits, found, lambda one: one.reason or ""),
        "odd": _files(splits, found, lambda one: ", ".join(one.odd)),
        "duplicates": [_named(splits, group) for group in same if len({name for name, _ in group}) < len(group)],
        "two_classes": [_named(splits, group) for group in same if len(_labels(splits, group)) > 1],
        "leaks": [_named(splits, group) for group in same if len({name for name, _ in group}) > 1],
        "sizes": report_lines.size_facts(
            [(one.width, one.height) for images in found.values() for one in images if one.reason is None]
        ),
        "suggested": suggest(splits, gpu=gpu),
    }
    return facts | {"problems": _problems(facts, splits)}


def leaks(
    splits: Splits, found: Mapping[str, Sequence[str]] | None = None, *, progress: Progress | None = None
) -> list[list[str]]:
    """Groups of images with the same bytes in more than one part, each as `part: name`.

    `found` are the digests of each part, `over_parts(splits, digests)`, where they are known already.
    """
    groups = _same_bytes(splits, over_parts(splits, digests, progress) if found is None else found)
    return [_named(splits, group) for group in groups if len({name for name, _ in group}) > 1]


def refuse_leaks(
    splits: Splits, found: Mapping[str, Sequence[str]] | None = None, *, progress: Progress | None = None
) -> Splits:
    """The same, or a `UserError` if images of one part are in another too.

    Published sets have published splits, and some leak (10 images of CIFAR-100): there it is a note.
    """
    groups = leaks(splits, found, progress=progress)
    if not groups:
        return splits
    if splits.reader in _PUBLISHED:
        return splits.noting(f"leak: {len(groups)} images of one part are in another part too, as published")
    raise UserError(
        f"{_number(len(groups), 'image')} in more than one part, for instance {' = '.join(groups[0][:3])}",
        "remove them from one part (gpaco check lists them), or allow it: --set data.allow_leakage=true",
    )


def refuse_one_class(splits: Splits) -> None:
    """Raise an error if all training images are of one class: any model would have them all right."""
    there = [splits.classes[c] for c in np.flatnonzero(splits.train.counts)]
    if len(there) == 1:
        raise UserError(
            f"all training images are of one class, {there[0]!r}: nothing to tell apart",
            "a folder of class folders is expected: perhaps its parent"
            if splits.reader.startswith("folder")
            else "images of two classes or more are needed",
        )


def record(splits: Splits, *, limit: int) -> dict[str, Any]:
    """What a run notes about its data, ready for JSON: how it was read, its parts with counts and a hash, copies.

    The hash is of the names and labels of a part, in order. Copies (images with the same bytes) are looked for among no
    more than `limit` images; `copies` is None for more.
    """
    parts = {
        name: {"images": len(part), "counts": part.counts.tolist(), "sha256": part.list_hash()}
        for name, part in splits.parts()
    }
    copies = None
    if sum(len(part) for _, part in splits.parts()) <= limit:
        same = _same_bytes(splits, over_parts(splits, digests))
        copies = {
            "within_a_part": [_named(splits, group) for group in same if len({name for name, _ in group}) < len(group)],
            "in_two_classes": [_named(splits, group) for group in same if len(_labels(splits, group)) > 1],
            "in_two_parts": [_named(splits, group) for group in same if len({name for name, _ in group}) > 1],
        }
    return {"reader": splits.reader, "notes": list(splits.notes), "parts": parts, "copies": copies}


def lines(facts: Mapping[str, Any]) -> list[str]:
    """What `check` found, as lines to print."""
    text = report_lines.opening(facts)
    if facts["imbalance_factor"] is not None:
        text.append(f"imbalance factor: {facts['imbalance_factor']:.4g}; Gini: {facts['gini']:.3f}")
    groups = facts["groups"]
    text.append(
        "training images per class: "
        + "; ".join(
            f"{name} ({rule}) {groups[name]['classes']} classes, {groups[name]['images']} images"
            for name, rule in (("many", f"> {MANY}"), ("medium", f"{FEW} to {MANY}"), ("few", f"< {FEW}"))
        )
    )
    if line := one_group(list(facts["counts"]["train"].values())):
        text.append(line)
    if facts["one_image"]:
        text.append(f"classes with one training image: {some(facts['one_image'])}")
    text += [f"classes without an image in {name}: {some(none)}" for name, none in facts["no_image"].items() if none]
    text += report_lines.size_lines(facts["sizes"])
    kinds = Counter(what for one in facts["odd"] for what in one["what"].split(", "))
    text += [f"odd: {what} ({counted(number, 'file')})" for what, number in kinds.most_common()]
    text += report_lines.unreadable(facts)
    text += report_lines.same_images("within a split", facts["duplicates"])
    text += report_lines.same_images("in two classes", facts["two_classes"])
    text += report_lines.same_images("in two splits", facts["leaks"])
    return text + report_lines.closing(facts)


def _same_bytes(splits: Splits, found: Mapping[str, Sequence[str]]) -> list[_Same]:
    places: dict[str, _Same] = defaultdict(list)
    for name, _ in splits.parts():
        for i, digest in enumerate(found[name]):
            if digest:
                places[digest].append((name, i))
    return [group for group in places.values() if len(group) > 1]


def _named(splits: Splits, group: _Same) -> list[str]:
    parts = dict(splits.parts())
    names = [(part, parts[part].names[i]) for part, i in group]
    return [name if name.startswith(f"{part}/") else f"{part}: {name}" for part, name in names]


def _labels(splits: Splits, group: _Same) -> set[int]:
    parts = dict(splits.parts())
    return {int(parts[name].labels[i]) for name, i in group}


def _files(splits: Splits, found: Mapping[str, Sequence[Inspection]], what: Any) -> list[dict[str, str]]:
    return [
        {"part": name, "name": part.names[i], "what": what(one)}
        for name, part in splits.parts()
        for i, one in enumerate(found[name])
        if what(one)
    ]


def _groups(counts: npt.NDArray[np.int64]) -> dict[str, dict[str, int]]:
    found = groups_of(counts, MANY, FEW)
    chosen = {name: found == name for name in GROUPS}
    return {name: {"classes": int(mask.sum()), "images": int(counts[mask].sum())} for name, mask in chosen.items()}


def _problems(facts: Mapping[str, Any], splits: Splits) -> list[str]:
    problems = []
    try:
        refuse_one_class(splits)
    except UserError as error:
        problems.append(f"{error.cause} ({error.remedy})")
    if facts["no_image"]["train"]:
        names = some(facts["no_image"]["train"])
        problems.append(f"classes without a training image: {names} (--set data.allow_empty_classes=true keeps them)")
    if facts["bad"]:
        what = counted(len(facts["bad"]), "unreadable image")
        try:
            without(splits, places_of(splits, [BadImage(*one.values()) for one in facts["bad"]]))
            problems.append(f"{what} (--on-bad-image skip leaves them out)")
        except UserError as error:
            problems.append(f"{what}, and --on-bad-image skip does not help: {error.cause}")
    if facts["leaks"] and splits.reader not in _PUBLISHED:
        problems.append(report_lines.leak_problem(facts["leaks"]))
    return problems


def _number(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
