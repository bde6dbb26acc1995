"""Tar shards in the layout of WebDataset: the files of a sample share their name up to the first dot.

    train-000.tar    cat/1.jpg cat/1.cls dog/7.jpg dog/7.cls ...
    train-001.tar    ...
    val-000.tar      ...       or train/000.tar, train/001.tar, val/000.tar

The class of an image is the text of its `.cls` file, or else "label", "cls" or "class" in its `.json`, or else the text
of its `.txt`; without any of them, the folder that the image is in. An archive is scanned once, for an index of names,
offsets and classes; after that, an image is a range of the archive's bytes, so images can be read in any order, like
files.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from unicodedata import normalize

import numpy as np

from gpaco.data.archives import sample_key, scan
from gpaco.data.members import Member
from gpaco.data.samples import SPLIT_WORDS, Samples, Splits
from gpaco.errors import UserError
from gpaco.system import distributed
from gpaco.system.files import write_atomic
from gpaco.system.words import printable, some

Row = list[Any]  # name of an image, its offset and size, its class
Entry = dict[str, Any]  # size and time of an archive, and the rows of its images


def read_shards(shards: Sequence[Path], index: Path | None = None) -> Splits:
    """Return the images of shards, sorted by class and name across all shards.

    Args:
        shards: archives. The first word of a name is its split, as in train-000.tar; or else its folder, if they are in
            several; all others are training data.
        index: JSON file that stores the index of all archives, if any.
    """
    known: dict[str, Entry] = json.loads(index.read_text()) if index is not None and index.is_file() else {}
    found = {str(shard): _entry(shard, known.get(str(shard))) for shard in shards}
    if index is not None and found != known and distributed.rank() == 0:
        index.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(index, json.dumps(found))
    rows: dict[str, list[tuple[Member, str]]] = {"train": []}
    several = len({shard.parent for shard in shards}) > 1
    for shard, entry in zip(shards, found.values(), strict=True):
        by_folder = SPLIT_WORDS.get(shard.parent.name.lower(), "train") if several else "train"
        split = SPLIT_WORDS.get(re.split(r"[^a-z]", shard.name.lower())[0], by_folder)
        own = rows.setdefault(split, [])
        for name, offset, size, label in entry["images"]:
            own.append((Member(shard, name, offset, size, entry["modified"]), label))
    labels = {label for split in rows.values() for _, label in split}
    numbers = all(label.isdecimal() for label in labels)
    classes = sorted(labels, key=lambda name: (int(name), name) if numbers else (0, name))
    parts = {split: _samples(own, classes) for split, own in rows.items()}
    return Splits(parts["train"], parts.get("val"), parts.get("test"), "tar shards")


def _samples(rows: list[tuple[Member, str]], classes: list[str]) -> Samples:
    number = {name: label for label, name in enumerate(classes)}
    rows = sorted(rows, key=lambda row: (number[row[1]], row[0].name))
    twice = [name for name, count in Counter(member.name for member, _ in rows).items() if count > 1]
    if twice:
        raise UserError(f"more than one shard has {some(twice, 3)}", "give every image a unique name")
    return Samples(
        np.array([number[label] for _, label in rows]),
        tuple(map(printable, classes)),
        paths=tuple(member for member, _ in rows),
        names=tuple(printable(member.name) for member, _ in rows),
    )


def _entry(shard: Path, known: Entry | None) -> Entry:
    """Return the index of an archive: the stored one, unless the archive has changed since."""
    found = shard.stat()
    if known is not None and (known["size"], known["modified"]) == (found.st_size, found.st_mtime_ns):
        return known
    return {"size": found.st_size, "modified": found.st_mtime_ns, "images": _labeled(shard)}


def _labeled(shard: Path) -> list[Row]:
    images, labels = scan(shard)
    rows = []
    for name, (offset, size) in images.items():
        label = labels.get(sample_key(name)) or PurePosixPath(name).parent.name
        if not label:
            raise UserError(
                f"{shard} has no class for {name!r}: no .cls, .txt or .json file beside it, and no folder",
                "add a file with its class, such as 1.cls for 1.jpg",
            )
        rows.append([name, offset, size, normalize("NFC", label)])
    if not rows:
        raise UserError(f"there is no image in {shard}", "a shard has files such as 1.jpg and 1.cls")
    return rows
