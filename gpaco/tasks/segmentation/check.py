"""Checks images and masks before training: unusable pairs, pixels per class, unlabeled pixels."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpaco.errors import UserError
from gpaco.metrics.groups import GROUPS, imbalance_factor
from gpaco.metrics.segmentation import share_groups
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Data, Recipe
from gpaco.system.progress import Progress, no_progress, quiet
from gpaco.system.words import plural, some
from gpaco.tasks import report_lines
from gpaco.tasks.segmentation.defaults import resolve
from gpaco.tasks.segmentation.estimate import estimate_seconds, format_estimate
from gpaco.tasks.segmentation.inspection import (
    class_problem,
    color_problem,
    gap_problem,
    inspect,
    leaks,
    too_many,
    unusable,
)
from gpaco.tasks.segmentation.readers.read import read_scenes
from gpaco.tasks.segmentation.scenes import SceneSplits
from gpaco.tasks.segmentation.splits import with_parts
from gpaco.tasks.segmentation.start import choose_start


def check(data: Path | str, *, progress: Progress = no_progress, device: torch.device | None = None) -> dict[str, Any]:
    """Return the facts about the data, ready for JSON; `lines` formats them as text.

    The splits are those of training. `problems` lists what would stop it, and what it would warn about.
    """
    splits, problems = read_scenes(data, progress), list[str]()
    try:
        splits = with_parts(splits, Data(), progress)
    except UserError as error:
        problems.append(f"{error.cause} ({error.remedy})")
    found = inspect(splits, progress)
    classes, bad, same = splits.classes, unusable(splits, found), leaks(splits, found)
    nothing = np.zeros(len(classes) + 1, np.int64)
    pixels = {name: sum((one.pixels for one in part), nothing) for name, part in found.items()}
    counts = pixels["train"][:-1]
    group = share_groups(counts)
    if bad:
        skip = "gpaco train --on-bad-image skip leaves them out"
        if excess := too_many(bad, splits):
            skip = f"{excess}: too many for --on-bad-image skip"
        problems.append(f"{plural(len(bad), 'pair')} of image and mask cannot be used ({skip})")
    if same and not splits.published:
        problems.append(report_lines.leak_problem(same))
    if len(splits.train) and not counts.any():
        problems.append("no training pixel belongs to a class")
    else:
        gaps = None if splits.published else gap_problem(splits)
        problems += filter(None, [None if splits.published else color_problem(found["train"])])
        problems += [f"{gaps.cause} ({gaps.remedy})"] if gaps else filter(None, [class_problem(classes, counts)])
    facts: dict[str, Any] = {
        "task": "segmentation",
        "reader": splits.reader,
        "notes": list(splits.notes),
        "classes": len(classes),
        "images": {name: len(part) for name, part in splits.parts()},
        "pixels": {name: dict(zip(classes, each[:-1].tolist(), strict=True)) for name, each in pixels.items()},
        "ignored": {name: float(each[-1] / each.sum()) if each.sum() else 0.0 for name, each in pixels.items()},
        "imbalance_factor": imbalance_factor(counts),
        "groups": {name: [classes[c] for c in np.flatnonzero(group == name)] for name in GROUPS},
        "no_pixel": {name: [classes[c] for c in np.flatnonzero(each[:-1] == 0)] for name, each in pixels.items()},
        "all_ignored": [
            f"{name}: {part.names[i]}"
            for name, part in splits.parts()
            for i, one in enumerate(found[name])
            if one.reason is None and not one.pixels[:-1].any()
        ],
        "bad": [{"part": one.split, "name": one.name, "what": one.reason} for one in bad],
        "leaks": same,
        "sizes": report_lines.size_facts([one.size for part in found.values() for one in part if one.reason is None]),
    }
    if any(one.reason is None for one in found["train"]):
        facts["start"], facts["suggested"] = suggestions(splits, device or torch.device("cpu"))
    return facts | {"problems": problems}


def suggestions(splits: SceneSplits, device: torch.device) -> tuple[list[str], dict[str, Any]]:
    """Return how `gpaco train` would start on this data and how long it would take, and the settings it chooses."""
    start: list[str] = []
    recipe = resolve(choose_start(Recipe(), start.append), set(), splits, device, quiet)
    with suppress(UserError):  # the image that is measured may be unreadable
        start.append(format_estimate(estimate_seconds(recipe, splits, device), recipe, device))
    return start, {key: value for key, (_, value) in recipes.diff(Recipe(), recipe).items()}


def lines(facts: Mapping[str, Any]) -> list[str]:
    """Format the result of `check` as lines to print."""
    text = report_lines.opening(facts)
    ignored = ", ".join(f"{name} {share:.1%}" for name, share in facts["ignored"].items())
    text.append(f"pixels that belong to no class: {ignored}")
    if facts["imbalance_factor"] is not None:
        text.append(f"imbalance factor of training pixels: {facts['imbalance_factor']:.4g}")
    for name, rule in (("many", "above the mean share"), ("medium", "between"), ("few", "below a tenth of it")):
        found = facts["groups"][name]
        text.append(f"{name} ({rule}): {plural(len(found), 'class')}{f': {some(found)}' if found else ''}")
    text.append("training pixels of each class:")
    total = max(sum(facts["pixels"]["train"].values()), 1)
    ordered = sorted(facts["pixels"]["train"].items(), key=lambda item: -item[1])
    text += [f"  {name:<28} {count:>14,} {count / total:8.2%}" for name, count in ordered if count]
    text += [f"classes without a pixel in {name}: {some(none)}" for name, none in facts["no_pixel"].items() if none]
    text += report_lines.size_lines(facts["sizes"])
    text += report_lines.titled_list("images without a labeled pixel", facts["all_ignored"])
    text += report_lines.unreadable(facts)
    text += report_lines.same_images("in two splits", facts["leaks"])
    return text + report_lines.closing(facts)
