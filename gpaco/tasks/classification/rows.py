"""Predictions of a classifier, a run or an exported file, as rows of a table. Needs no torch.

An unreadable file gets a row with its error.
"""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gpaco.data.images import Pixels, read_image
from gpaco.data.members import File
from gpaco.errors import EnvironmentProblem, Problem, UserError, installing
from gpaco.system.outputs import Mark, output_file
from gpaco.system.prefetch import prefetch
from gpaco.system.progress import Progress, no_progress
from gpaco.system.words import printable
from gpaco.system.work import ALONE, Work
from gpaco.tasks.classification.logits import Floats, Logits, check_finite, softmax

Row = dict[str, Any]
Seen = list[Pixels]  # the test view of an image for each network of an ensemble
Write = Callable[[Row], object]
COLUMNS = ("path", "class", "probability", "group", "train")  # then the top classes
WRITER = "gpaco predict"
MARKS: dict[str, Mark] = {  # strings that are in every file we write, and in no other table
    ".csv": (",".join([*COLUMNS, "class_1", "probability_1"]), ",error\r\n"),  # not if somebody added a column
    ".jsonl": f'"written_by": "{WRITER}"',
    ".parquet": WRITER,
}


@dataclass(frozen=True, eq=False)
class ImageClassifier:
    """A classifier for prediction: images in, logits out."""

    name: str
    classes: tuple[str, ...]
    counts: tuple[int, ...] | None  # training images per class, if known
    groups: tuple[str, ...] | None  # many, medium or few
    assumed: Floats | None  # log of the class distribution that the logits assume, (C,), if known
    least: int  # sufficient pixels for the shorter side of an image
    see: Callable[[Pixels], Seen]
    logits: Callable[[Sequence[Seen]], Logits]

    def probabilities(self, images: Sequence[Seen]) -> Floats:
        """Return the probabilities of the classes, (N, C)."""
        logits = self.logits(images)
        check_finite(logits)
        return softmax(logits)


def predict_rows(
    model: ImageClassifier,
    files: Sequence[File],
    place: Path | None = None,
    *,
    top: int,
    batch_size: int,
    uncertain: float | None = None,
    progress: Progress = no_progress,
    work: Work = ALONE,
) -> list[Row]:
    """Return a row for each file, and write the rows to a table if a place is given.

    With `uncertain`, a row says whether its probability is below that.
    """

    def read(path: File) -> Seen | str:
        try:
            return model.see(read_image(path, model.least))
        except Problem as error:
            return error.cause

    rows, rounds = list[Row](), work.rounds(len(files), batch_size)
    loaded = prefetch(read, (files[i] for own in rounds for i in own), ahead=batch_size)
    with table_writer(place if work.first else None, top, marked=uncertain is not None) as write:
        for own in rounds:
            images = list(islice(loaded, len(own)))
            good = [image for image in images if not isinstance(image, str)]
            probabilities = iter(model.probabilities(good) if good else ())
            found: list[Row] = []
            for i, image in zip(own, images, strict=True):
                row: Row = dict.fromkeys(COLUMNS) | {"path": printable(str(files[i]))}
                if isinstance(image, str):
                    row |= {"top": [], "error": image}
                else:
                    row |= answer(next(probabilities), model, top) | {"error": None}
                if uncertain is not None:
                    row["uncertain"] = row["probability"] is None or row["probability"] < uncertain
                found.append(row)
            for row in work.collect(found):
                rows.append(row)
                write(row)
            progress(len(rows), len(files))
    return rows


def answer(probabilities: Floats, model: ImageClassifier, top: int) -> Row:
    """Return the most probable class with its group and training count, and the `top` classes."""
    best = np.argsort(-probabilities, kind="stable")[:top]
    first = int(best[0])
    return {
        "class": model.classes[first],
        "probability": round(float(probabilities[first]), 6),
        "group": None if model.groups is None else model.groups[first],
        "train": None if model.counts is None else model.counts[first],
        "top": [(model.classes[c], round(float(probabilities[c]), 6)) for c in best],
    }


def check_options(uncertain: float | None, **numbers: int) -> None:
    """Raise an error if `uncertain` is not a probability, or one of the numbers is below 1."""
    for name, number in numbers.items():
        if number < 1:
            raise UserError(f"{name} must be at least 1, got {number}", "change it or leave it out")
    if uncertain is not None and not 0 < uncertain <= 1:
        raise UserError(f"{uncertain:g} is not a probability", "for example --uncertain 0.7")


def output_table(out: Path | str, data: Iterable[object] = ()) -> Path:
    """Return the path if a table of predictions may go there, or raise an error."""
    path = output_file(out, MARKS, data)
    if path.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise EnvironmentProblem(
            "Parquet needs pyarrow, which is not installed", f"{installing('tables')}, or write a .csv file"
        )
    return path


@contextmanager
def table_writer(path: Path | None, top: int, *, marked: bool) -> Iterator[Write]:
    """Yield a function that writes a row to a file: CSV, JSON lines or Parquet, depending on its suffix.

    The file is replaced when all rows are written, unless no image could be read. `marked`: whether rows have a column
    "uncertain".
    """
    if path is None:
        yield lambda row: None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        readable = not path.exists()
        with _rows_to(work, path.suffix.lower(), top, marked=marked) as write:

            def write_row(row: Row) -> None:
                nonlocal readable
                readable = readable or row["error"] is None
                write(row)

            yield write_row
        if readable:
            os.replace(work, path)
    finally:
        work.unlink(missing_ok=True)


@contextmanager
def _rows_to(path: Path, suffix: str, top: int, *, marked: bool) -> Iterator[Write]:
    tops = [f"{what}_{k}" for k in range(1, top + 1) for what in ("class", "probability")]
    names = [*COLUMNS, *tops, *(["uncertain"] if marked else []), "error"]

    def flat(row: Row) -> list[Any]:
        pairs = [value for pair in [*row["top"], *[(None, None)] * top][:top] for value in pair]
        return [*(row[name] for name in COLUMNS), *pairs, *([row["uncertain"]] if marked else []), row["error"]]

    if suffix == ".parquet":
        rows: list[list[Any]] = []
        yield lambda row: rows.append(flat(row))
        write_parquet(path, names, rows)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        if suffix == ".jsonl":
            yield lambda row: print(json.dumps(row | {"written_by": WRITER}, ensure_ascii=False), file=file)
            return
        table = csv.writer(file)
        table.writerow(names)
        yield lambda row: table.writerow(flat(row))


def write_parquet(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    def kind(name: str) -> Any:
        if name == "uncertain":
            return pyarrow.bool_()
        if name == "train":
            return pyarrow.int64()
        return pyarrow.float64() if name.startswith("probability") else pyarrow.string()

    columns = [[row[k] for row in rows] for k in range(len(names))]
    arrays = [pyarrow.array(column, kind(name)) for name, column in zip(names, columns, strict=True)]
    table = pyarrow.Table.from_arrays(arrays, names=list(names))
    parquet.write_table(table.replace_schema_metadata({"writer": WRITER}), path)
