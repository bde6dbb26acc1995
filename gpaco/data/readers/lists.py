"""List files: lines of `relative/path.jpg 17`, as for ImageNet-LT, Places-LT and iNaturalist 2018."""

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gpaco.data.published_lists import PUBLISHED
from gpaco.data.readers.rows import ListedImage, ListedImages, find, read_text
from gpaco.data.samples import Splits
from gpaco.errors import UserError

_SIBLINGS = {"val": ("val", "valid", "validation"), "test": ("test", "testing")}
_MAX_CLASSES = 1_000_000


def read_list(path: Path, root: Path, allow_outside: bool) -> Splits:
    """Read the images of a list, and of the validation and test lists beside a list with `train` in its name.

    The label comes after the last blank of a line, so names may contain blanks. Classes are named by their number.
    Paths are relative to `root`.
    """
    lists = {"train": path} | _siblings(path)
    notes = [f"{split} list: {file.name}" for split, file in lists.items() if split != "train"]
    found: dict[str, ListedImages] = {}
    for split, file in lists.items():
        text, decoding = read_text(file)
        own = found[split] = find(_rows(text, file, split), file, root, allow_outside)
        published = PUBLISHED.get(file.name)
        if published and own.seen != published.images:
            notes.append(f"{file.name} has {own.seen} images, the published list has {published.images}")
        notes += [f"{file.name}: {note}" for note in (*decoding, *own.notes)]
    labels = {split: np.array([int(row.label) for row in part.rows], np.int64) for split, part in found.items()}
    classes = tuple(map(str, range(max(int(numbers.max()) for numbers in labels.values()) + 1)))
    parts = {split: part.samples(split, labels[split], classes) for split, part in found.items()}
    return Splits(parts["train"], parts.get("val"), parts.get("test"), "list file", tuple(notes))


def _siblings(path: Path) -> dict[str, Path]:
    """Return the lists whose names differ from this one only in the last `train`."""
    match = re.search(r"train(ing)?(?!.*train)", path.name, re.IGNORECASE)
    if match is None:
        return {}
    beside = {name.lower(): path.with_name(name) for name in sorted(os.listdir(path.parent))}
    found = {}
    for split, words in _SIBLINGS.items():
        names = [f"{path.name[: match.start()]}{word}{path.name[match.end() :]}".lower() for word in words]
        if there := [beside[name] for name in names if name in beside and beside[name].is_file()]:
            found[split] = there[0]
    return found


def _rows(text: str, file: Path, split: str) -> Iterator[ListedImage]:
    for line, content in enumerate(io.StringIO(text, newline=None), 1):
        content = content.strip()
        if not content:
            continue
        parts = content.rsplit(None, 1)
        if len(parts) != 2:
            raise _bad_line(file, line, content, "it needs a path and a label")
        if not parts[1].isdecimal() or int(parts[1]) >= _MAX_CLASSES:
            raise _bad_line(file, line, content, f"the label {parts[1]!r} is not a class index, 0, 1, 2, ...")
        yield ListedImage(line, parts[0], parts[1], split)


def _bad_line(file: Path, line: int, content: str, why: str) -> UserError:
    shown = content if len(content) <= 80 else content[:77] + "..."
    return UserError(
        f"line {line} of {file.name}: {why}: {shown!r}",
        "lines look like folder/image.jpg 17; for class names or other columns, use a CSV table",
    )
