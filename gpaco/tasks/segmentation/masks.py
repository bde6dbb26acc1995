"""Predictions of a segmenter, a run or an exported file: a mask of class numbers, one in colors, and an overlay.

Needs no torch. An unreadable file gets a row with its error.
"""

import csv
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gpaco.data.files import find_files
from gpaco.data.images import read_image
from gpaco.data.members import File, Member
from gpaco.errors import Problem, UserError
from gpaco.system.faults import explained
from gpaco.system.outputs import mark_folder, output_folder
from gpaco.system.prefetch import prefetch
from gpaco.system.progress import Progress, no_progress
from gpaco.system.words import printable
from gpaco.system.work import ALONE, Work

Row = dict[str, Any]
Write = Callable[[list[Any]], None]
MARK = ".gpaco-predict"
_ROUND = 8  # images per process between writes, with several processes
COLUMNS = ("path", "mask", "colors", "overlay", "probability", "error")
KINDS = {"mask": ".png", "colors": ".png", "overlay": ".jpg"}  # folders and the suffix of their files


@dataclass(frozen=True, eq=False)
class ImageSegmenter:
    """A segmenter for prediction: an image in, the class of each pixel out."""

    name: str
    classes: tuple[str, ...]
    palette: tuple[tuple[int, ...], ...]  # the color of each class
    counts: tuple[int, ...]  # training pixels per class
    groups: tuple[str, ...]  # many, medium or few
    segment: Callable[[NDArray[np.uint8]], tuple[NDArray[np.uint8], NDArray[np.float32]]]  # classes, probability

    def answer(self, image: NDArray[np.uint8]) -> tuple[Row, NDArray[np.uint8]]:
        """Return the mean probability and the share of each predicted class, and the mask."""
        classes, probability = self.segment(image)
        if not np.isfinite(probability).all():
            raise UserError(
                "the outputs of the model are not finite: training has diverged",
                "train with a lower learning rate: --lr",
            )
        found, counts = np.unique(classes, return_counts=True)
        shares = {self.classes[c]: round(float(n / classes.size), 6) for c, n in zip(found, counts, strict=True)}
        return {"probability": round(float(probability.mean()), 6), "shares": shares}, classes


def output_masks(out: Path | str, data: Iterable[object] = ()) -> Path:
    """Return the path if masks may go there, or raise an error."""
    if Path(out).suffix.lower() in (".csv", ".json", ".jsonl", ".parquet"):
        raise UserError(f"a segmenter writes to a folder, and {out} is a file name", "--out FOLDER")
    return output_folder(out, MARK, data=data)


def write_masks(
    model: ImageSegmenter,
    paths: Sequence[Path | str],
    *,
    folder: Path | None,
    uncertain: float | None = None,
    progress: Progress = no_progress,
    work: Work = ALONE,
) -> list[Row]:
    """Return a row for each image, and write its masks to the folder; see `predict_masks`."""
    files = _named(paths, folder)
    columns = [*COLUMNS[:-1], *([] if uncertain is None else ["uncertain"]), COLUMNS[-1]]
    rows: list[Row] = []
    table: AbstractContextManager[Write | None] = nullcontext()
    if folder is not None and work.first:
        table = _table(folder, model, columns, rows)
    rounds = work.rounds(len(files), 1 if work.processes == 1 else _ROUND)
    images = prefetch(_read, (files[i][0] for one in rounds for i in one), ahead=1, threads=1)
    with explained(f"cannot write to {folder}", ""), table as write:
        for one in rounds:
            found: list[Row] = []
            for file, name in (files[i] for i in one):
                image = next(images)
                row: Row = dict.fromkeys(COLUMNS) | {"path": printable(str(file)), "shares": {}}
                row |= {"error": image} if isinstance(image, str) else _segmented(model, image, folder, name)
                if uncertain is not None:
                    row["uncertain"] = row["probability"] is None or row["probability"] < uncertain
                found.append(row)
            for row in work.collect(found):
                rows.append(row)
                if write is not None:
                    write([row[column] for column in columns])
            progress(len(rows), len(files))
    if folder is not None and work.first:
        good = [name for (_, name), row in zip(files, rows, strict=True) if row["error"] is None]
        _forget_earlier(folder, {f"{kind}/{name}{ending}" for name in good for kind, ending in KINDS.items()})
    return rows


@contextmanager
def _table(folder: Path, model: ImageSegmenter, columns: Sequence[str], rows: Sequence[Row]) -> Iterator[Write]:
    """Yield a function that adds a row to predictions.csv; classes.csv is written beside it.

    They replace earlier ones at the end, unless no image could be read.
    """
    mark_folder(folder, MARK)
    table, work = folder / "predictions.csv", folder / f".predictions.{os.getpid()}.writing"
    try:
        with work.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            yield writer.writerow
        if table.exists() and all(row["error"] is not None for row in rows):
            return
        os.replace(work, table)
    finally:
        work.unlink(missing_ok=True)
    with (folder / "classes.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "red", "green", "blue"])
        colors = zip(model.classes, model.palette, strict=True)
        writer.writerows([name, *color] for name, color in colors)


def _forget_earlier(folder: Path, written: set[str]) -> None:
    """Remove the masks of earlier predictions, which the mark of the folder lists, and list these instead."""
    mark = folder / MARK
    if written:
        for name in set(os.fsdecode(mark.read_bytes()).split("\0")) - written:
            if (folder / name).is_file() and (folder / name).resolve().is_relative_to(folder.resolve()):
                (folder / name).unlink()
        mark.write_bytes(os.fsencode("\0".join(sorted(written))))


def colored(classes: NDArray[np.uint8], palette: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a mask in the colors of its classes, (H, W, 3); pixels without a class are black."""
    table = np.zeros((256, 3), np.uint8)
    table[: len(palette)] = palette
    return table[classes]


def overlaid(image: NDArray[np.uint8], colors: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the mean of an image and colors."""
    mixed: NDArray[np.uint8] = np.rint(0.5 * image + 0.5 * colors).astype(np.uint8)
    return mixed


def _segmented(model: ImageSegmenter, image: NDArray[np.uint8], folder: Path | None, name: str) -> Row:
    row, classes = model.answer(image)
    if folder is None:
        return row
    colors = colored(classes, np.array(model.palette, np.uint8))
    images = {"mask": classes, "colors": colors, "overlay": overlaid(image, colors)}
    for kind, ending in KINDS.items():
        place = folder / kind / f"{name}{ending}"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[kind]).save(place)
        row[kind] = printable(place)
    return row


def _read(path: File) -> NDArray[np.uint8] | str:
    try:
        return read_image(path)
    except Problem as error:
        return error.cause


def _below(file: File, top: Path) -> Path:
    if isinstance(file, Member):  # its name may be absolute or have `..`
        return Path(*(part for part in file.name.split("/") if part not in ("", ".", "..")))
    return file.relative_to(top) if top.is_dir() else Path(file.name)


def _named(paths: Sequence[Path | str], out: Path | None) -> list[tuple[File, str]]:
    """Return the images that the paths name, each with a unique name for its results."""
    if not paths:
        raise UserError("there are no images to predict", "give files, folders or a .txt list")
    found = [(path, file) for path in map(Path, paths) for file in find_files([path], out)]
    wanted = [str(_below(file, top).with_suffix("")) for top, file in found]
    own, taken = set(wanted), set[str]()
    numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(2))
    named = []
    for (_, file), name in zip(found, wanted, strict=True):
        free = name
        while free in taken or (free != name and free in own):
            free = f"{name}-{next(numbers[name])}"
        taken.add(free)
        named.append((file, free))
    return named
