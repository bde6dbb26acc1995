"""Inspects every image of a data set: whether it decodes, its size, its hash."""

import csv
import hashlib
import io
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gpaco.data.images import BadImageError, describe_image, read_image
from gpaco.data.members import File, Member
from gpaco.data.samples import AnySplits, BadImage, Samples, Splits
from gpaco.errors import UserError
from gpaco.system import distributed
from gpaco.system.files import write_atomic
from gpaco.system.prefetch import prefetch
from gpaco.system.progress import Progress, no_progress

INSPECTION_LIMIT = 20_000  # files; hashing and decoding more takes minutes
TOLERATED = 0.01  # share of unreadable images that may be left out

Result = TypeVar("Result")

_CHUNK = 64
_THREADS = 2


@dataclass(frozen=True)
class Inspection:
    """What is known about an image: why it is unreadable (or None), SHA-256 of its bytes, size, oddities."""

    reason: str | None
    digest: str
    width: int = 0
    height: int = 0
    odd: tuple[str, ...] = ()


def inspect(samples: Samples, progress: Progress = no_progress) -> list[Inspection]:
    """Decode and hash each image; files are hashed by their bytes, images in memory by their pixels."""
    return each(len(samples), lambda i: _inspected(samples, i), progress)


def digests(samples: Samples, progress: Progress = no_progress, *, shared: bool = False) -> list[str]:
    """Return the SHA-256 of each image without decoding it; an empty string for an unreadable file.

    With `shared`, each process reads its share, and all get the whole list.
    """
    return each(len(samples), lambda i: _digest(samples, i), progress, shared=shared)


def fingerprints(paths: Sequence[str | File], progress: Progress = no_progress) -> list[str]:
    """Return a string for each file, the same only for files with the same bytes. Only files of equal size are read."""
    sizes = [_size(path) for path in paths]
    shared = {size for size, files in Counter(sizes).items() if files > 1}
    return each(len(paths), lambda i: (sizes[i] in shared and _file_digest(paths[i])) or f"file {i}", progress)


def find_bad(samples: Samples, progress: Progress = no_progress, *, shared: bool = False) -> list[tuple[int, str]]:
    """Return the index of each image that does not decode, and the reason; `shared` as in `digests`."""
    if samples.paths is None:
        return []
    paths = samples.paths
    reasons = each(len(samples), lambda i: _fault(paths[i]), progress, shared=shared)
    return [(i, reason) for i, reason in enumerate(reasons) if reason is not None]


def bad_images(splits: Splits, progress: Progress = no_progress, *, shared: bool = False) -> list[BadImage]:
    """Return the images of all splits that do not decode; `shared` as in `digests`."""
    found = over_parts(splits, partial(find_bad, shared=shared), progress)
    return [BadImage(name, part.names[i], why) for name, part in splits.parts() for i, why in found[name]]


def over_parts(
    splits: Splits, look: Callable[[Samples, Progress], Result], progress: Progress = no_progress
) -> dict[str, Result]:
    """Call `inspect`, `digests` or `find_bad` for every split, and return the results by name, with shared progress."""
    total, done = sum(len(part) for _, part in splits.parts()), 0
    found = {}
    for name, part in splits.parts():
        found[name] = look(part, _shifted(progress, done, len(part), total))
        done += len(part)
    return found


def _shifted(progress: Progress, before: int, size: int, total: int) -> Progress:
    """Return the progress of one split, of which this process may inspect only a share, as that of all splits."""
    return lambda now, of: progress(before + size * now // of, total)


def without(splits: AnySplits, bad: Sequence[BadImage]) -> AnySplits:
    """Return the splits without these images. Those that no longer exist are ignored."""
    gone = {(one.split, one.name) for one in bad}
    affected = {one.split for one in bad}
    parts: dict[str, Any] = {
        name: part.subset([i for i, own in enumerate(part.names) if (name, own) not in gone])
        for name, part in splits.parts()
        if name in affected
    }
    return replace(splits, bad=tuple(bad), **parts)


def write_bad(path: Path, listed: Sequence[BadImage]) -> None:
    """Write a table of the images that were left out."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([BadImage._fields, *listed])
    write_atomic(path, text.getvalue())


def read_bad(path: Path) -> list[BadImage]:
    """Return the rows that `write_bad` wrote."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = [tuple(row) for row in csv.reader(file, strict=True)]
            if header == BadImage._fields:
                return [BadImage(*row) for row in rows]
    except (ValueError, TypeError, csv.Error):
        pass
    raise UserError(
        f"{path} was changed after it was written", "restore it from a backup, or start over with another --out"
    )


def each(total: int, look: Callable[[int], Result], progress: Progress, *, shared: bool = False) -> list[Result]:
    """Call `look` for every index in two threads: reading, hashing and decoding mostly release the GIL.

    With `shared`, each process looks at its share, and all get the whole list: results must be ready for JSON.
    """
    own = distributed.own_share(total) if shared else range(total)
    size = min(_CHUNK, len(own) // (4 * _THREADS) + 1)
    chunks = [own[start : start + size] for start in range(0, len(own), size)]
    results: list[Result] = []
    for found in prefetch(lambda chunk: [look(i) for i in chunk], chunks, ahead=2 * _THREADS, threads=_THREADS):
        results += found
        progress(len(results), len(own))
    if not shared:
        return results
    everyone: list[Any] = [None] * total
    for rank, found in enumerate(distributed.gather_json(results)):
        everyone[rank :: distributed.world_size()] = found
    return everyone


def _fault(path: str | File) -> str | None:
    """Return why a file does not decode; a large JPEG is decoded at an eighth of its size."""
    try:
        read_image(path, least=1)
    except BadImageError as error:
        return error.reason
    return None


def _inspected(samples: Samples, i: int) -> Inspection:
    digest = _digest(samples, i)
    if samples.paths is None:
        height, width = samples.load(i).shape[:2]
        return Inspection(None, digest, width, height)
    try:
        facts = describe_image(samples.paths[i])
    except BadImageError as error:
        return Inspection(error.reason, digest)
    return Inspection(None, digest, facts.width, facts.height, facts.odd)


def _digest(samples: Samples, i: int) -> str:
    if samples.paths is None:
        return hashlib.sha256(np.ascontiguousarray(samples.load(i)).data).hexdigest()
    return _file_digest(samples.paths[i])


def _size(path: str | File) -> int:
    if isinstance(path, Member):
        return path.size
    return os.stat(path).st_size if os.path.isfile(path) else -1


def _file_digest(path: str | File) -> str:
    try:
        if isinstance(path, Member):
            return hashlib.sha256(path.read_bytes()).hexdigest()
        if os.path.isfile(path):  # a pipe would never end
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        pass
    return ""
