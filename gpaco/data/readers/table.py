"""Tables with a row per image: CSV, TSV or Parquet with `path,label[,split]`, under common column names."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpaco.data.images import SUFFIXES
from gpaco.data.readers.rows import ListedImage, find, read_text
from gpaco.data.samples import SPLIT_WORDS, Splits
from gpaco.errors import EnvironmentProblem, UserError, installing, nearest
from gpaco.system.words import one_line, some

# Column names, the most likely first.
_PATH = ("path", "file", "filename", "image", "img", "filepath", "files", "images", "paths")
_LABEL = ("label", "class", "target", "species", "category", "labels", "classes", "y")
_SPLIT = ("split", "subset", "fold", "set", "partition", "usage")

_Cells = tuple[int, list[str]]  # a line number and its cells
_Columns = tuple[int, int, int | None]  # of paths, labels and splits


def read_table(path: Path, root: Path, allow_outside: bool) -> Splits:
    """Read the images of a table. Relative paths start at `root`.

    The first line names the columns. Classes are the labels that occur: whole numbers in numeric order, anything else
    sorted as text. Without a split column, everything is training data.
    """
    kind = "Parquet table" if path.suffix.lower() in (".parquet", ".pq") else f"{path.suffix[1:].upper()} table"
    lines, notes = (_parquet_lines(path), []) if kind == "Parquet table" else _text_lines(path)
    columns, guessed = _columns(lines, path)
    found = find(_rows(lines, columns, path), path, root, allow_outside)
    known = {row.label for row in found.rows}
    numeric = all(re.fullmatch(r"-?\d{1,30}", name) for name in known)
    classes = tuple(sorted(known, key=lambda name: (int(name) if numeric else 0, name)))
    index = {name: c for c, name in enumerate(classes)}
    labels = np.array([index[row.label] for row in found.rows], np.int64)
    train, val, test = (found.samples(split, labels, classes) for split in ("train", "val", "test"))
    return Splits(train, val or None, test or None, kind, (*notes, guessed, *found.notes))


def _rows(lines: Iterator[_Cells], columns: _Columns, path: Path) -> Iterator[ListedImage]:
    path_at, label_at, split_at = columns
    for line, cells in lines:
        where = f"line {line} of {path.name}"
        if len(cells) <= max(path_at, label_at, split_at or 0):
            raise UserError(f"{where} has too few columns: {some(cells)}", "complete or remove the row")
        file, label = cells[path_at], cells[label_at]
        if not file or not label:
            raise UserError(f"{where} has no {'label' if file else 'path'}", "complete or remove the row")
        word = "train" if split_at is None else cells[split_at]
        if word.lower() not in SPLIT_WORDS:
            raise UserError(
                f"{where}: split {word!r} is not train, val or test{nearest(word.lower(), SPLIT_WORDS)}",
                "correct it, or rename the column if it is not about splits",
            )
        yield ListedImage(line, file, label, SPLIT_WORDS[word.lower()])


def _columns(lines: Iterator[_Cells], path: Path) -> tuple[_Columns, str]:
    """Return the columns, found by their names in the first line, and a note about the choice."""
    _, cells = next(lines, (0, []))
    if not cells:
        raise UserError(f"{str(path)!r} is empty", "it needs a row per image: path,label")
    words = [re.sub(r"[\s\-.]+", "_", cell.lower()) for cell in cells]
    if any(Path(cell).suffix.lower() in SUFFIXES for cell in cells):
        raise UserError(f"the first line of {path.name} is an image: {some(cells)}", "add a first line: path,label")
    label, split = (_place(words, known) for known in (_LABEL, _SPLIT))
    file = _place([word if i != label else "" for i, word in enumerate(words)], _PATH)
    if file is None or label is None:
        what, known = ("paths", _PATH) if file is None else ("labels", _LABEL)
        typo = next((hint for name in known[:6] if (hint := nearest(name, words))), "")
        raise UserError(
            f"{path.name} has no column with {what} among {some(cells, 12)}{typo}",
            "name the columns in the first line: path,label",
        )
    note = f"columns: path = {cells[file]!r}, label = {cells[label]!r}"
    note += "" if split is None else f", split = {cells[split]!r}"
    unused = [cell for i, cell in enumerate(cells) if i not in (file, label, split)]
    return (file, label, split), note + (f"; not used: {some(unused)}" if unused else "")


def _place(words: Sequence[str], known: Sequence[str]) -> int | None:
    """Return the column with one of the known names, or else with one of the main ones as part of its name."""
    exact = next((words.index(name) for name in known if name in words), None)
    if exact is not None or known is _SPLIT:
        return exact
    return next((i for name in known[:5] for i, word in enumerate(words) if name in word.split("_")), None)


def _text_lines(path: Path) -> tuple[Iterator[_Cells], list[str]]:
    text, notes = read_text(path)
    if path.suffix.lower() == ".tsv":
        return _csv_lines(text, "\t", path), notes
    head = text.split("\n", 1)[0]
    mark = max(",;\t", key=head.count)
    said = {";": ["columns are separated by ';'"], "\t": ["columns are separated by tabs"]}
    return _csv_lines(text, mark, path), [*notes, *said.get(mark, [])]


def _csv_lines(text: str, mark: str, path: Path) -> Iterator[_Cells]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True, strict=True)
    width = 0
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            width = width or len(cells)
            if len(cells) > width and any(cell.strip() for cell in cells[width:]):
                raise UserError(
                    f"line {reader.line_num} of {path.name} has {len(cells)} columns, the first has {width}",
                    'put quotes around names that contain a separator: "a, b.jpg",cat',
                )
            yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise UserError(f"line {reader.line_num} of {path.name}: {error}", "check the quotes near this line") from None


def _parquet_lines(path: Path) -> Iterator[_Cells]:
    """Yield the rows of text and number columns, names first; other columns, such as images, are not read."""
    try:
        from pyarrow import parquet, types  # type: ignore[import-untyped]
    except ImportError:
        raise EnvironmentProblem("Parquet tables need pyarrow, which is not installed", installing("tables")) from None
    try:
        with parquet.ParquetFile(path) as file:
            plain = [field.name for field in file.schema_arrow if _is_plain(field.type, types)]
            yield 0, plain
            line = 0
            for batch in file.iter_batches(batch_size=4096, columns=plain):
                for cells in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    line += 1
                    yield line, ["" if cell is None else str(cell).strip() for cell in cells]
    except Exception as error:  # from Arrow or the system
        raise UserError(f"cannot read {str(path)!r} as Parquet: {one_line(error)}", "write the table again") from error


def _is_plain(kind: Any, types: Any) -> bool:
    kind = kind.value_type if types.is_dictionary(kind) else kind
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return bool(text or types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
