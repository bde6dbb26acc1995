"""Inspects every image and mask: whether the pair is usable, its size and its classes."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpaco.data.images import read_image
from gpaco.data.inspection import TOLERATED, each
from gpaco.data.samples import BadImage
from gpaco.errors import UserError
from gpaco.metrics.segmentation import IGNORE
from gpaco.system.progress import Progress, no_progress
from gpaco.system.words import plural, some
from gpaco.tasks.segmentation.scenes import Color, Scenes, SceneSplits

UNLISTED = 0.01  # largest acceptable share of pixels with colors that are not in the table of classes


@dataclass(frozen=True, eq=False)
class Inspection:
    """One pair: why it is unusable (or None), pixels by class with unlabeled ones last, size, image hash.

    `unlisted` has the number of pixels of each color that is not in the table of classes.
    """

    reason: str | None
    pixels: NDArray[np.int64]
    size: tuple[int, int] = (0, 0)  # width and height
    digest: str = ""
    unlisted: Counter[Color] = field(default_factory=Counter)


def inspect(
    splits: SceneSplits, progress: Progress = no_progress, *, shared: bool = False
) -> dict[str, list[Inspection]]:
    """Return the inspection of every pair, by split.

    With `shared`, each process decodes its share, and all get the whole result.
    """
    found: dict[str, list[Inspection]] = {name: [] for name, _ in splits.parts()}
    places = [(name, part, i) for name, part in splits.parts() for i in range(len(part))]
    rows = each(len(places), lambda k: _as_row(_inspected(*places[k][1:])), progress, shared=shared)
    for (name, _, _), row in zip(places, rows, strict=True):
        found[name].append(_from_row(*row))
    return found


def _as_row(one: Inspection) -> list[Any]:
    """Return an inspection ready for JSON."""
    return [one.reason, one.pixels.tolist(), one.size, one.digest, list(one.unlisted.items())]


def _from_row(reason: str | None, pixels: list[int], size: list[int], digest: str, unlisted: list[Any]) -> Inspection:
    colors = Counter({(red, green, blue): number for (red, green, blue), number in unlisted})
    return Inspection(reason, np.array(pixels, np.int64), (size[0], size[1]), digest, colors)


def _inspected(scenes: Scenes, i: int) -> Inspection:
    try:
        image, mask = scenes.load(i)
    except UserError as error:
        return Inspection(error.cause, np.zeros(len(scenes.classes) + 1, np.int64))
    counts = np.bincount(mask.ravel(), minlength=IGNORE + 1)
    pixels = np.append(counts[: len(scenes.classes)], counts[IGNORE])
    height, width = mask.shape
    digest = hashlib.sha256(np.ascontiguousarray(image).data).hexdigest()
    return Inspection(None, pixels, (width, height), digest, unlisted_colors(scenes, i, mask))


def unlisted_colors(scenes: Scenes, i: int, mask: NDArray[np.uint8]) -> Counter[Color]:
    """Return the pixels of each color in a mask that is not in the table of classes; black and white mean no class."""
    if not scenes.decode.colors or not (mask == IGNORE).any():
        return Counter()
    packed = read_image(scenes.masks[i])[mask == IGNORE].astype(np.int64) @ [65536, 256, 1]
    colors, counts = np.unique(packed, return_counts=True)
    found = {(c >> 16, c >> 8 & 255, c & 255): n for c, n in zip(colors.tolist(), counts.tolist(), strict=True)}
    return Counter({color: n for color, n in found.items() if color not in ((0, 0, 0), (255, 255, 255))})


def color_problem(found: Sequence[Inspection]) -> str:
    """Return a problem if more than 1% of all pixels have colors that are not in the table; otherwise ""."""
    unlisted = sum((one.unlisted for one in found), Counter[Color]())
    share = unlisted.total() / max(sum(int(one.pixels.sum()) for one in found), 1)
    if share <= UNLISTED:
        return ""
    color, number = unlisted.most_common(1)[0]
    return (
        f"{share:.1%} of the training pixels have colors that are not in the table of classes, most often "
        f"{','.join(map(str, color))} ({plural(number, 'pixel')}); such pixels are ignored"
    )


def class_problem(classes: Sequence[str], pixels: ArrayLike) -> str:
    """Return a problem if classes have no training pixels; otherwise ""."""
    none = [name for name, count in zip(classes, np.asarray(pixels).tolist(), strict=True) if not count]
    return f"{plural(len(none), 'class')} without a training pixel cannot be learned: {some(none)}" if none else ""


def gap_problem(splits: SceneSplits) -> UserError | None:
    """Return the error for masks whose values have gaps: most often they are gray levels, not class numbers."""
    if not splits.gaps:
        return None
    there = [name for name in splits.train.classes if name not in set(splits.gaps)]
    return UserError(
        f"the masks have the values {', '.join(there[:6])}{', ...' if len(there) > 6 else ''}: "
        f"{len(splits.gaps)} of {len(splits.train.classes)} classes do not occur",
        "number the classes 0, 1, 2, ... without gaps, or list all of them in classes.txt, one per line",
    )


def unusable(splits: SceneSplits, found: Mapping[str, Sequence[Inspection]]) -> list[BadImage]:
    """Return the unusable pairs with their reasons."""
    return [
        BadImage(name, part.names[i], one.reason)
        for name, part in splits.parts()
        for i, one in enumerate(found[name])
        if one.reason is not None
    ]


def too_many(bad: Sequence[object], splits: SceneSplits) -> str:
    """Return the limit that unusable pairs exceed, as text; "" if they may be left out."""
    total = sum(len(part) for _, part in splits.parts())
    return f"more than {TOLERATED:.1%} of {total}" if len(bad) > max(TOLERATED * total, 1) else ""


def leaks(splits: SceneSplits, found: Mapping[str, Sequence[Inspection]]) -> list[list[str]]:
    """Return groups of equal images in more than one split, each as `split: name`."""
    places: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, part in splits.parts():
        for image, one in zip(part.names, found[name], strict=True):
            if one.digest:
                places[one.digest].append((name, f"{name}: {image}"))
    return [[image for _, image in group] for group in places.values() if len({name for name, _ in group}) > 1]
