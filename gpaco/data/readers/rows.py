"""Turns rows of a table or list file, `path label split`, into samples."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from gpaco.data.samples import Samples
from gpaco.errors import UserError
from gpaco.system.words import printable

TABLES, LISTS = (".csv", ".tsv", ".parquet", ".pq"), (".txt", ".lst", ".list")  # suffixes
_MISSING_SHOWN = 100  # stop checking after this many missing files


@dataclass(frozen=True)
class ListedImage:
    line: int
    path: str
    label: str
    split: str = "train"


@dataclass(frozen=True)
class ListedImages:
    """Rows whose images exist, each once, and their files."""

    rows: list[ListedImage]
    paths: list[str]
    seen: int  # rows read, including those that were dropped
    notes: list[str]

    def samples(self, split: str, labels: npt.NDArray[np.int64], classes: tuple[str, ...]) -> Samples:
        """Return the samples of one split; `labels` are those of all rows."""
        own = [i for i, row in enumerate(self.rows) if row.split == split]
        names = tuple(printable(self.rows[i].path) for i in own)
        return Samples(labels[own], classes, paths=tuple(self.paths[i] for i in own), names=names)


def read_text(path: Path) -> tuple[str, list[str]]:
    """Return the text of a file, decoded as UTF-8 (with or without BOM) or else Latin-1, and notes about it."""
    data = path.read_bytes()
    if b"\0" in data:
        raise UserError(f"{str(path)!r} is not UTF-8 text: it has zero bytes", "save it as UTF-8 text")
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return data.decode("latin-1"), [f"encoding: not UTF-8 (line {line}), read as Latin-1"]


def find(rows: Iterable[ListedImage], source: Path, root: Path, allow_outside: bool) -> ListedImages:
    """Return the rows with the files they name.

    Paths that lead out of `root`, and `..`, are refused unless allowed; absolute ones below it are made relative. An
    accented letter may be one character or two. Missing files are an error that counts them; a row that repeats another
    is dropped with a note, and one that gives a file in the same split a second label is an error.
    """
    kept: list[ListedImage] = []
    paths: list[str] = []
    first: dict[tuple[str, str], ListedImage] = {}
    missing: list[ListedImage] = []
    seen = repeated = 0
    roots = {os.path.abspath(root), os.path.realpath(root)}
    for row in rows:
        seen += 1
        if "\\" in row.path and there(root, row.path) is None:  # written on Windows
            row = replace(row, path=row.path.replace("\\", "/"))
        place, label = _below(row.path, roots), normalize("NFC", row.label)
        if (place, label) != (row.path, row.label):
            row = replace(row, path=place, label=label)
        if not allow_outside and (os.path.isabs(place) or ".." in place.split("/")):
            raise UserError(
                f"line {row.line} of {source.name} points outside the data folder: {row.path!r}",
                "write all paths relative to one folder, and give that folder: --root FOLDER; "
                "or allow it, in `gpaco train` and `check`: --set data.allow_outside=true",
            )
        key = row.split, os.path.normpath(row.path)
        earlier = first.setdefault(key, row)
        if earlier is not row:
            if earlier.label != row.label:
                raise UserError(
                    f"lines {earlier.line} and {row.line} of {source.name} give {row.path!r} "
                    f"two labels: {earlier.label!r} and {row.label!r}",
                    "keep one of the two lines",
                )
            repeated += 1
            continue
        if file := there(root, row.path):
            kept.append(row)
            paths.append(file)
        else:
            missing.append(row)
            del first[key]
            if len(missing) >= _MISSING_SHOWN:
                break
    if missing:
        raise _missing(missing, seen, len(kept), source, root)
    if not kept:
        raise UserError(f"{str(source)!r} lists no images", "it needs one line per image")
    return ListedImages(kept, paths, seen, [f"dropped: {repeated} duplicate rows"] if repeated else [])


def there(folder: Path, name: str) -> str | None:
    """Return the file of this name, in which an accented letter may be one character or two; otherwise None."""
    forms = (name, *(normalize(form, name) for form in ("NFC", "NFD") if not name.isascii()))
    return next((path for form in forms if os.path.isfile(path := os.path.join(folder, form))), None)


def _below(path: str, roots: Iterable[str]) -> str:
    """Make an absolute path below one of the roots relative to it; leave others unchanged."""
    for root in roots if os.path.isabs(path) and ".." not in Path(path).parts else ():
        if Path(path).is_relative_to(root):
            return os.path.relpath(path, root)
    return path


def _missing(missing: list[ListedImage], seen: int, kept: int, source: Path, root: Path) -> UserError:
    many = f"at least {len(missing)}" if len(missing) >= _MISSING_SHOWN else str(len(missing))
    what = f"{many} of {seen} images" if kept else "none of the images"
    first = f"the first is {missing[0].path!r} on line {missing[0].line}"
    return UserError(
        f"{what} in {source.name} {'do not exist' if kept else 'exists'}; {first}",
        f"paths are relative to {str(root)!r}; if the images are elsewhere, give their folder with --root",
    )
