"""Checks a data set before training: counts, balance, unreadable and odd files, duplicates, leaks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpaco.data.inspection import Inspection, inspect, over_parts
from gpaco.data.leaks import PUBLISHED, copies, refuse_one_class
from gpaco.data.readers.read import read
from gpaco.data.samples import BadImage, Splits, in_memory
from gpaco.errors import UserError
from gpaco.metrics.groups import FEW, GROUPS, MANY, gini, imbalance_factor, one_group
from gpaco.metrics.groups import groups as groups_of
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.system.progress import Progress, no_progress, quiet
from gpaco.system.words import in_lines, plural, some
from gpaco.tasks import report_lines
from gpaco.tasks.classification.defaults import resolve
from gpaco.tasks.classification.estimate import estimate_seconds, format_estimate
from gpaco.tasks.classification.splits import with_reported, with_selecting, without_unreadable
from gpaco.tasks.classification.start import choose_start

SHOWN = 20  # classes whose images are counted


def check(
    data: Path | str | Splits,
    *,
    root: Path | str | None = None,
    allow_outside: bool = False,
    progress: Progress = no_progress,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """Return the facts about the data, ready for JSON; `lines` formats them as text.

    Every image is decoded and hashed once. `problems` lists what would stop training.
    """
    splits = (
        data
        if isinstance(data, Splits)
        else read(data, root=root, allow_empty_classes=True, allow_outside=allow_outside)
    )
    found = over_parts(splits, inspect, progress)
    same = copies(splits, {name: [one.digest for one in images] for name, images in found.items()})
    counts = splits.train.counts
    folded = Counter(name.strip().casefold() for name in splits.classes)
    start, suggested = suggestions(splits, device or torch.device("cpu"))
    facts: dict[str, Any] = {
        "reader": splits.reader,
        "notes": list(splits.notes),
        "classes": len(splits.classes),
        "images": {name: len(part) for name, part in splits.parts()},
        "counts": {name: dict(zip(splits.classes, part.counts.tolist(), strict=True)) for name, part in splits.parts()},
        "imbalance_factor": imbalance_factor(counts),
        "gini": gini(counts),
        "groups": _groups(counts),
        "alike": [name for name in splits.classes if folded[name.strip().casefold()] > 1],
        "one_image": [splits.classes[c] for c in np.flatnonzero(counts == 1)],
        "no_image": {
            name: [splits.classes[c] for c in np.flatnonzero(part.counts == 0)] for name, part in splits.parts()
        },
        "bad": _files(splits, found, lambda one: one.reason or ""),
        "odd": _files(splits, found, lambda one: list(one.odd)),
        "duplicates": same["within_a_part"],
        "two_classes": same["in_two_classes"],
        "leaks": same["in_two_parts"],
        "sizes": report_lines.size_facts(
            [(one.width, one.height) for images in found.values() for one in images if one.reason is None]
        ),
        "start": start,
        "suggested": suggested,
    }
    return facts | {"problems": _problems(facts, splits)}


def suggestions(splits: Splits, device: torch.device) -> tuple[list[str], dict[str, Any]]:
    """Return how `gpaco train` would start on this data and how long it would take, and the settings it chooses."""
    start: list[str] = []
    given = splits.notes
    splits = with_reported(splits, Recipe().data)
    recipe = choose_start(Recipe(), set(), splits.train, device, start.append)
    splits = with_selecting(splits, recipe.data)
    start = [note for note in splits.notes if note not in given] + start
    if line := one_group(splits.train.counts):
        start.append(line)
    with suppress(UserError):  # an image may be unreadable
        splits = in_memory(splits, recipe.data.in_memory)
    recipe = resolve(recipe, set(), splits, device, quiet)
    with suppress(UserError):  # the image that is measured may be unreadable
        start.append(format_estimate(estimate_seconds(recipe, splits, device), recipe, device))
    return start, {key: value for key, (_, value) in recipes.diff(Recipe(), recipe).items()}


def lines(facts: Mapping[str, Any]) -> list[str]:
    """Format the result of `check` as lines to print."""
    text = report_lines.opening(facts)
    if facts["imbalance_factor"] is not None:
        text.append(f"imbalance factor: {facts['imbalance_factor']:.4g}; Gini: {facts['gini']:.3f}")
    rules = {"many": f"> {MANY}", "medium": f"{FEW} to {MANY}", "few": f"< {FEW}"}
    groups = [(f"{name} ({rule})", facts["groups"][name]) for name, rule in rules.items()]
    before = "" if len(facts["images"]) > 1 else ", before any are held out"
    text.append(f"training images per class{before}:")
    text += [f"  {title:<20}{_size(group)}" for title, group in groups if group["classes"]]
    ranked = sorted(facts["counts"]["train"].items(), key=lambda one: -one[1])
    shown = [f"{name} {number:,}" for name, number in ranked]
    text += in_lines(shown if len(shown) <= SHOWN else [*shown[: SHOWN // 2], "...", *shown[-SHOWN // 2 :]])
    if facts["alike"]:
        text.append(f"class names that differ only in case or spaces: {some(facts['alike'])}")
    if facts["one_image"]:
        text.append(f"classes with one training image: {some(facts['one_image'])}")
    text += [f"classes without an image in {name}: {some(none)}" for name, none in facts["no_image"].items() if none]
    text += report_lines.size_lines(facts["sizes"])
    kinds = Counter(what for one in facts["odd"] for what in one["what"])
    text += [f"unusual: {what} ({plural(number, 'file')})" for what, number in kinds.most_common()]
    text += report_lines.unreadable(facts)
    text += report_lines.same_images("within a split", facts["duplicates"])
    text += report_lines.same_images("in two classes", facts["two_classes"])
    text += report_lines.same_images("in two splits", facts["leaks"])
    return text + report_lines.closing(facts)


def _size(group: Mapping[str, int]) -> str:
    return f"{plural(group['classes'], 'class')}, {plural(group['images'], 'image')}"


def _files(splits: Splits, found: Mapping[str, Sequence[Inspection]], what: Any) -> list[dict[str, Any]]:
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
        problems.append(
            f"classes without a training image: {names} (gpaco train --set data.allow_empty_classes=true keeps them)"
        )
    if facts["bad"]:
        what = plural(len(facts["bad"]), "unreadable image")
        try:
            without_unreadable(splits, [BadImage(*one.values()) for one in facts["bad"]])
            problems.append(f"{what} (gpaco train --on-bad-image skip leaves them out)")
        except UserError as error:
            problems.append(f"{what}, and --on-bad-image skip does not help: {error.cause}")
    if facts["leaks"] and splits.reader not in PUBLISHED:
        problems.append(report_lines.leak_problem(facts["leaks"]))
    return problems
