"""What to know of a data set before training: counts, balance, bad and odd files, duplicates, leaks, settings."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpaco.data.inspection import Inspection, inspect, over_parts, places_of, without
from gpaco.data.leaks import PUBLISHED, copies, refuse_one_class
from gpaco.data.readers.read import read
from gpaco.data.samples import BadImage, Splits
from gpaco.errors import UserError
from gpaco.metrics.groups import FEW, GROUPS, MANY, gini, imbalance_factor, one_group
from gpaco.metrics.groups import groups as groups_of
from gpaco.recipes.request import overrides
from gpaco.system.progress import Progress
from gpaco.system.words import some
from gpaco.tasks.classification.defaults import suggest

_SHOWN = 10


def check(
    data: str | os.PathLike[str] | Splits,
    *,
    root: str | os.PathLike[str] | None = None,
    allow_outside: bool = False,
    progress: Progress | None = None,
    gpu: bool | None = None,
) -> dict[str, Any]:
    """All there is to say about a data set, as JSON takes it; `lines` puts it into words.

    Every image is decoded and hashed once. `problems` has what would stop training.
    """
    splits = (
        data
        if isinstance(data, Splits)
        else read(data, root=root, allow_outside=allow_outside, allow_empty_classes=True)
    )
    found = over_parts(splits, inspect, progress)
    same = copies(splits, {name: [one.digest for one in images] for name, images in found.items()})
    counts = splits.train.counts
    suggested = suggest(splits, gpu=gpu)
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
        "duplicates": same["within_a_part"],
        "two_classes": same["in_two_classes"],
        "leaks": same["in_two_parts"],
        "sizes": _sizes(found),
        "suggested": suggested,
    }
    return facts | {"problems": _problems(facts, splits)}


def lines(facts: Mapping[str, Any]) -> list[str]:
    """What `check` found, for people."""
    images = ", ".join(f"{name} {number}" for name, number in facts["images"].items())
    text = [f"read as: {facts['reader']}", *(f"  {note}" for note in facts["notes"])]
    text.append(f"images: {images}; classes: {facts['classes']}")
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
    for name, missing in facts["no_image"].items():
        if missing:
            text.append(f"classes without an image in {name}: {some(missing)}")
    sizes = facts["sizes"]
    if sizes["common"]:
        common = ", ".join(f"{one['width']} x {one['height']} ({one['images']})" for one in sizes["common"][:5])
        text.append(
            f"sizes: {common}; shorter side {sizes['smallest']} to {sizes['largest']}, median {sizes['median']}"
        )
    kinds = Counter(what for one in facts["odd"] for what in one["what"].split(", "))
    text += [f"odd: {what} ({_number(number, 'file')})" for what, number in kinds.most_common()]
    text += _listed("bad", [f"{one['name']} ({one['part']}): {one['what']}" for one in facts["bad"]])
    text += _listed("same image within a part", [" = ".join(group) for group in facts["duplicates"]])
    text += _listed("same image in two classes", [" = ".join(group) for group in facts["two_classes"]])
    text += _listed("same image in two parts", [" = ".join(group) for group in facts["leaks"]])
    text.append("suggested settings, each with the flag that overrides it:")
    for key, value in facts["suggested"].items():
        text.append(f"  {key} = {value}  ({overrides(key)})")
    text += [f"problem: {problem}" for problem in facts["problems"]] or ["no problems found"]
    return text


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


def _sizes(found: Mapping[str, Sequence[Inspection]]) -> dict[str, Any]:
    good = [one for images in found.values() for one in images if one.reason is None]
    common = Counter((one.width, one.height) for one in good).most_common(_SHOWN)
    sides = [min(one.width, one.height) for one in good] or [0]
    return {
        "common": [{"width": width, "height": height, "images": number} for (width, height), number in common],
        "smallest": min(sides),
        "median": int(np.median(sides)),
        "largest": max(sides),
    }


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
        what = _number(len(facts["bad"]), "bad image")
        try:
            without(splits, places_of(splits, [BadImage(*one.values()) for one in facts["bad"]]))
            problems.append(f"{what} (--on-bad-image skip leaves them out)")
        except UserError as error:
            problems.append(f"{what}, and --on-bad-image skip would not do: {error.cause}")
    if facts["leaks"] and splits.reader not in PUBLISHED:
        problems.append(
            f"{_number(len(facts['leaks']), 'image')} in more than one part (--set data.allow_leakage=true allows it)"
        )
    return problems


def _number(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _listed(what: str, items: Sequence[str]) -> list[str]:
    more = [f"  and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return [f"{what}: {len(items)}", *(f"  {item}" for item in items[:_SHOWN]), *more] if items else []
