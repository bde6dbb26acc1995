"""Checks where results may go: a command replaces only what it wrote itself, and never writes into labeled data.

It recognizes its files by a string in each of them, and its folders by a file in each of them: its mark.
"""

import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpaco.errors import EnvironmentProblem, UserError, nearest
from gpaco.system.faults import explained
from gpaco.system.locks import HOLDER, LOCK
from gpaco.system.words import printable

Mark = str | tuple[str, ...] | None
Data = Iterable[object]  # labeled images: paths; anything else, such as None or "digits", is ignored


def output_file(out: Path | str, marks: Mapping[str, Mark], data: Data = ()) -> Path:
    """Return the path if results may go there, or raise an error.

    `marks` has the allowed suffixes, each with a string, or several, in every such file that the command writes; None
    if the command never replaces a file.
    """
    path = Path(out)
    suffix = path.suffix.lower()
    if suffix not in marks:
        ends = " or ".join(marks)
        raise UserError(
            f"the results cannot be written to {path.name!r}{nearest(suffix, marks)}", f"use a name that ends in {ends}"
        )
    _check_place(path, data)
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a file", "choose another --out")
    if path.exists() and not has_mark(path, marks[suffix]):
        raise UserError(f"{path} exists and was not written by this command", "choose another --out, or remove it")
    return path


def output_folder(out: Path | str, *marks: str, data: Data = ()) -> Path:
    """Return the path if results may go there, or raise an error: the folder must be new, empty, or have a mark."""
    path = Path(out)
    _check_place(path, data)
    if path.is_file():
        raise UserError(f"{path} is a file, not a folder", "choose another --out")
    begun = {LOCK, HOLDER, *(f".{mark}.writing" for mark in marks)}  # left by a process that was killed at startup
    foreign = path.is_dir() and any(inside.name not in begun for inside in path.iterdir())
    if foreign and not any((path / mark).is_file() for mark in marks):
        raise UserError(f"{path} is not empty and was not written by this command", "choose another --out")
    return path


def labeled_places(path: Any, root: Any = None) -> list[object]:
    """Return where the labeled images of a data set are, given its path and the root of the paths in a list.

    A root that contains the list is the home of more than images, as is the folder of a list without a root.
    """
    if not root or not path:
        return [path]
    one, other = (Path(os.path.realpath(os.path.expanduser(place))) for place in (path, root))
    return [path] if one.is_relative_to(other) else [path, root]


def mark_folder(path: Path, mark: str) -> None:
    """Create a folder for results, with the mark of the command."""
    with explained(f"cannot write to {path}", ""):
        path.mkdir(parents=True, exist_ok=True)
        (path / mark).touch()


def _check_place(path: Path, data: Data) -> None:
    """Raise an error if the path is inside labeled data, below a file, or where nothing can be written."""
    if printable(str(path)) != str(path):
        raise UserError(f"the name {printable(str(path))!r} is not UTF-8", "choose another --out")
    above = next((place for place in path.absolute().parents if place.exists()), path)
    if not above.is_dir():
        raise UserError(f"{above} is a file, not a folder", "choose another --out")
    folder = path if path.is_dir() else above
    if not os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise EnvironmentProblem(
            f"cannot write to {folder}: permission denied", "change the permissions, or choose another --out"
        )
    for one in data:
        if isinstance(one, str | Path) and str(one) not in ("", "digits"):
            images = Path(os.path.expanduser(one)).resolve()
            if path.resolve() == images or (images.is_dir() and path.resolve().is_relative_to(images)):
                raise UserError(f"{path} is inside the data, {images}", "choose an --out outside the data")


def has_mark(path: Path, mark: Mark) -> bool:
    """Return whether a file contains a mark; an empty file may be replaced too."""
    words = (mark,) if isinstance(mark, str) else mark
    if not path.is_file() or path.stat().st_size == 0:
        return path.is_file()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return words is not None and all(content.find(word.encode()) >= 0 for word in words)
