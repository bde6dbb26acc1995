"""What to know of scenes before training: pairs that do not fit, pixels of each class, what belongs to none."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpaco.data.inspection import TOLERATED, too_many
from gpaco.errors import UserError
from gpaco.metrics.groups import GROUPS, imbalance_factor
from gpaco.metrics.segmentation import IGNORE, share_groups
from gpaco.recipes.request import overrides
from gpaco.recipes.settings import Data
from gpaco.system.progress import Progress
from gpaco.system.words import some
from gpaco.tasks.segmentation.defaults import suggest, usual_size
from gpaco.tasks.segmentation.readers.read import read_scenes
from gpaco.tasks.segmentation.scenes import Scenes, SceneSplits
from gpaco.tasks.segmentation.splits import with_parts

SHOWN = 10  # of a long list


@dataclass(frozen=True, eq=False)
class Inspection:
    """One pair: why it cannot be used (None: it can), pixels by class with those of none last, size, picture's hash."""

    reason: str | None
    pixels: NDArray[np.int64]
    size: tuple[int, int] = (0, 0)
    digest: str = ""


def inspect(splits: SceneSplits, progress: Progress | None = None) -> dict[str, list[Inspection]]:
    """Every pair of every part, decoded once."""
    found: dict[str, list[Inspection]] = {name: [] for name, _ in splits.parts()}
    total, done = sum(len(part) for _, part in splits.parts()), 0
    with ThreadPoolExecutor(2) as pool:
        for name, part in splits.parts():
            for one in pool.map(lambda i, part=part: _inspected(part, i), range(len(part))):
                found[name].append(one)
                done += 1
                if progress is not None:
                    progress(done, total)
    return found


def _inspected(scenes: Scenes, i: int) -> Inspection:
    try:
        image, mask = scenes.load(i)
    except UserError as error:
        return Inspection(error.cause, np.zeros(len(scenes.classes) + 1, np.int64))
    counts = np.bincount(mask.ravel(), minlength=IGNORE + 1)
    pixels = np.append(counts[: len(scenes.classes)], counts[IGNORE])
    height, width = mask.shape
    return Inspection(None, pixels, (height, width), hashlib.sha256(np.ascontiguousarray(image).data).hexdigest())


def check_scenes(data: Path | str, *, progress: Progress | None = None, gpu: bool = False) -> dict[str, Any]:
    """All there is to say about pictures and masks, as JSON takes it; `lines` puts it into words.

    The parts are those that training makes; `problems` has what would stop it.
    """
    splits, problems = read_scenes(data, progress), list[str]()
    try:
        splits = with_parts(splits, Data(), progress)
    except UserError as error:
        problems.append(f"{error.cause} ({error.remedy})")
    found = inspect(splits, progress)
    nothing = np.zeros(len(splits.classes) + 1, np.int64)
    pixels = {name: sum((one.pixels for one in part), nothing) for name, part in found.items()}
    counts = pixels["train"][:-1]
    group = share_groups(counts)
    good = [one for part in found.values() for one in part if one.reason is None]
    sides = [min(one.size) for one in good] or [0]
    common = Counter(one.size for one in good).most_common(SHOWN)
    facts: dict[str, Any] = {
        "task": "segmentation",
        "reader": splits.reader,
        "notes": list(splits.notes),
        "classes": len(splits.classes),
        "images": {name: len(part) for name, part in splits.parts()},
        "pixels": {name: dict(zip(splits.classes, each[:-1].tolist(), strict=True)) for name, each in pixels.items()},
        "ignored": {name: float(each[-1] / each.sum()) if each.sum() else 0.0 for name, each in pixels.items()},
        "imbalance_factor": imbalance_factor(counts),
        "groups": {name: [splits.classes[c] for c in np.flatnonzero(group == name)] for name in GROUPS},
        "no_pixel": {
            name: [splits.classes[c] for c in np.flatnonzero(each[:-1] == 0)] for name, each in pixels.items()
        },
        "all_ignored": _named(splits, found, lambda one: one.reason is None and not one.pixels[:-1].any()),
        "bad": [
            {"part": name, "name": part.names[i], "what": one.reason}
            for name, part in splits.parts()
            for i, one in enumerate(found[name])
            if one.reason is not None
        ],
        "leaks": leaks(splits, found),
        "sizes": {
            "common": [{"width": width, "height": height, "images": n} for (height, width), n in common],
            "smallest": min(sides),
            "largest": max(sides),
        },
    }
    if any(one.reason is None for one in found["train"]):
        facts["suggested"] = suggest(usual_size(splits.train), gpu=gpu)
    return facts | {"problems": problems + _problems(facts, published=splits.published)}


def leaks(splits: SceneSplits, found: Mapping[str, Sequence[Inspection]]) -> list[list[str]]:
    """Groups of equal pictures in more than one part, each as `part: name`."""
    places: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, part in splits.parts():
        for i, one in enumerate(found[name]):
            if one.digest:
                places[one.digest].append((name, part.names[i]))
    groups = [group for group in places.values() if len({name for name, _ in group}) > 1]
    return [[f"{name}: {picture}" for name, picture in group] for group in groups]


def lines(facts: Mapping[str, Any]) -> list[str]:
    """What `check_scenes` found, for people."""
    images = ", ".join(f"{name} {number}" for name, number in facts["images"].items())
    text = [f"read as: {facts['reader']}", *(f"  {note}" for note in facts["notes"])]
    text.append(f"pictures: {images}; classes: {facts['classes']}")
    ignored = ", ".join(f"{name} {share:.1%}" for name, share in facts["ignored"].items())
    text.append(f"pixels that belong to no class: {ignored}")
    if facts["imbalance_factor"] is not None:
        text.append(f"imbalance factor of training pixels: {facts['imbalance_factor']:.4g}")
    for name, rule in (("many", "above the mean share"), ("medium", "between"), ("few", "below a tenth of it")):
        found = facts["groups"][name]
        text.append(f"{name} ({rule}): {_number(len(found), 'class', 'classes')}{f': {some(found)}' if found else ''}")
    text.append("training pixels of each class:")
    total = max(sum(facts["pixels"]["train"].values()), 1)
    ordered = sorted(facts["pixels"]["train"].items(), key=lambda item: -item[1])
    text += [f"  {name:<28} {count:>14,} {count / total:8.2%}" for name, count in ordered]
    text += [f"classes without a pixel in {name}: {some(none)}" for name, none in facts["no_pixel"].items() if none]
    sizes = facts["sizes"]
    if sizes["common"]:
        common = ", ".join(f"{one['width']} x {one['height']} ({one['images']})" for one in sizes["common"][:5])
        text.append(f"sizes: {common}; shorter side {sizes['smallest']} to {sizes['largest']}")
    text += _listed("pictures without a labeled pixel", facts["all_ignored"])
    text += _listed("bad", [f"{one['name']} ({one['part']}): {one['what']}" for one in facts["bad"]])
    text += _listed("same picture in two parts", [" = ".join(group) for group in facts["leaks"]])
    if "suggested" in facts:
        text.append("suggested settings, each with what overrides it:")
        text += [f"  {key} = {value}  ({overrides(key)})" for key, value in facts["suggested"].items()]
    return text + ([f"problem: {problem}" for problem in facts["problems"]] or ["no problems found"])


def _problems(facts: Mapping[str, Any], *, published: bool) -> list[str]:
    problems = []
    if facts["bad"]:
        what = _number(len(facts["bad"]), "pair", "pairs")
        total = sum(facts["images"].values())
        skip = (
            f"more than {TOLERATED:.1%} of {total}: too many for --on-bad-image skip"
            if too_many(len(facts["bad"]), total)
            else "--on-bad-image skip leaves them out"
        )
        problems.append(f"{what} of picture and mask cannot be used ({skip})")
    if facts["leaks"] and not published:
        what = _number(len(facts["leaks"]), "picture is", "pictures are")
        problems.append(f"{what} in more than one part (--set data.allow_leakage=true allows it)")
    if facts["images"]["train"] and not any(facts["pixels"]["train"].values()):
        problems.append("no training pixel belongs to a class")
    return problems


def _named(
    splits: SceneSplits, found: Mapping[str, Sequence[Inspection]], chosen: Callable[[Inspection], bool]
) -> list[str]:
    def names() -> Iterator[str]:
        for name, part in splits.parts():
            yield from (f"{name}: {part.names[i]}" for i, one in enumerate(found[name]) if chosen(one))

    return list(names())


def _number(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _listed(what: str, items: Sequence[str]) -> list[str]:
    more = [f"  and {len(items) - SHOWN} more"] if len(items) > SHOWN else []
    return [f"{what}: {len(items)}", *(f"  {item}" for item in items[:SHOWN]), *more] if items else []
