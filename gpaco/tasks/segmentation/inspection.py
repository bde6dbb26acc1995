"""Every image and mask decoded once: can the pair be used, how large is it, which classes does it have."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpaco.data.inspection import TOLERATED
from gpaco.data.samples import BadImage
from gpaco.errors import UserError
from gpaco.metrics.segmentation import IGNORE
from gpaco.system.progress import Progress
from gpaco.tasks.segmentation.scenes import Scenes, SceneSplits


@dataclass(frozen=True, eq=False)
class Inspection:
    """One pair: why it cannot be used (None: it can), pixels by class with unlabeled ones last, size, image hash."""

    reason: str | None
    pixels: NDArray[np.int64]
    size: tuple[int, int] = (0, 0)  # width and height
    digest: str = ""


def inspect(splits: SceneSplits, progress: Progress | None = None) -> dict[str, list[Inspection]]:
    """Return what is found in every pair, by the name of its split."""
    found: dict[str, list[Inspection]] = {name: [] for name, _ in splits.parts()}
    places = [(name, part, i) for name, part in splits.parts() for i in range(len(part))]
    with ThreadPoolExecutor(2) as pool:
        looked = pool.map(lambda place: _inspected(*place[1:]), places)
        for done, ((name, _, _), one) in enumerate(zip(places, looked, strict=True), 1):
            found[name].append(one)
            if progress is not None:
                progress(done, len(places))
    return found


def _inspected(scenes: Scenes, i: int) -> Inspection:
    try:
        image, mask = scenes.load(i)
    except UserError as error:
        return Inspection(error.cause, np.zeros(len(scenes.classes) + 1, np.int64))
    counts = np.bincount(mask.ravel(), minlength=IGNORE + 1)
    pixels = np.append(counts[: len(scenes.classes)], counts[IGNORE])
    height, width = mask.shape
    return Inspection(None, pixels, (width, height), hashlib.sha256(np.ascontiguousarray(image).data).hexdigest())


def unusable(splits: SceneSplits, found: Mapping[str, Sequence[Inspection]]) -> list[BadImage]:
    """Return the pairs that cannot be used, each with its reason."""
    return [
        BadImage(name, part.names[i], one.reason)
        for name, part in splits.parts()
        for i, one in enumerate(found[name])
        if one.reason is not None
    ]


def too_many(bad: Sequence[object], splits: SceneSplits) -> str:
    """Return by how much unusable pairs exceed what may be left out; "" if they do not."""
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
