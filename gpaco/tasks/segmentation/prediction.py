"""Predictions for new images: a mask of class numbers, one in colors, and an overlay for each.

An unreadable file is a row with its error.
"""

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpaco.data.files import find_files
from gpaco.data.images import read_image
from gpaco.errors import Problem, UserError
from gpaco.system.faults import explained
from gpaco.system.progress import Progress
from gpaco.system.words import printable
from gpaco.tasks.segmentation.evaluation import segment
from gpaco.tasks.segmentation.predictor import ScenePredictor, load_segmenter
from gpaco.training.run import Run

Row = dict[str, Any]
Write = Callable[[list[Any]], None]
COLUMNS = ("path", "mask", "colors", "overlay", "probability", "error")
KINDS = {"mask": ".png", "colors": ".png", "overlay": ".jpg"}  # folders and the suffix of their files


def predict_masks(
    run: Run,
    paths: Sequence[Path | str],
    *,
    out: Path | str | None,
    device: torch.device,
    show: Progress | None,
    **how: Any,
) -> list[Row]:
    """Return a row for each image, and write its masks to the folder `out`.

    A row has the path, the three files, the mean probability of the predicted classes, the share of each class, and
    error (or None). `out` gets mask/ (class numbers), colors/, overlay/, predictions.csv, and classes.csv with the
    colors; without it nothing is written. `how` goes to `segment`: scales, flip, window, stride.
    """
    folder = None if out is None else Path(out)
    if folder is not None and (folder.suffix.lower() in (".csv", ".json", ".jsonl") or folder.is_file()):
        raise UserError(f"a segmenter writes images to a folder, and {folder} is not one", "--out FOLDER")
    files = _named(paths)
    predictor = load_segmenter(run, device=device)
    rows: list[Row] = []
    table: AbstractContextManager[Write | None] = nullcontext() if folder is None else _table(folder, predictor)
    with explained(f"cannot write to {folder}", ""), ThreadPoolExecutor(1) as pool, table as write:
        ahead = pool.submit(_read, files[0][0])
        for k, (file, name) in enumerate(files, 1):
            image = ahead.result()
            if k < len(files):  # decoded while the network works
                ahead = pool.submit(_read, files[k][0])
            row: Row = dict.fromkeys(COLUMNS) | {"path": printable(file), "shares": {}}
            row |= {"error": image} if isinstance(image, str) else _segmented(predictor, image, folder, name, how)
            rows.append(row)
            if write is not None:
                write([row[column] for column in COLUMNS])
            if show is not None:
                show(k, len(files))
    return rows


@contextmanager
def _table(folder: Path, predictor: ScenePredictor) -> Iterator[Write]:
    """A function that adds a row to predictions.csv; classes.csv is written beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "classes.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "red", "green", "blue"])
        colors = zip(predictor.classes, predictor.card.palette, strict=True)
        writer.writerows([name, *color] for name, color in colors)
    with (folder / "predictions.csv").open("w", newline="", encoding="utf-8", buffering=1) as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        yield writer.writerow


def colored(classes: NDArray[np.uint8], palette: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a mask in the colors of its classes, (H, W, 3); pixels without a class are black."""
    table = np.zeros((256, 3), np.uint8)
    table[: len(palette)] = palette
    return table[classes]


def overlaid(image: NDArray[np.uint8], colors: NDArray[np.uint8], strength: float = 0.5) -> NDArray[np.uint8]:
    """Return an image with colors over it."""
    mixed: NDArray[np.uint8] = np.rint((1 - strength) * image + strength * colors).astype(np.uint8)
    return mixed


def _segmented(
    predictor: ScenePredictor, image: NDArray[np.uint8], folder: Path | None, name: str, how: dict[str, Any]
) -> Row:
    from PIL import Image

    classes, probability = segment(predictor, image, **how)
    if not np.isfinite(probability).all():
        raise UserError("the outputs of the model are not finite, so it predicts nothing", "training has diverged")
    found, counts = np.unique(classes, return_counts=True)
    shares = {predictor.classes[c]: round(float(n / classes.size), 6) for c, n in zip(found, counts, strict=True)}
    row: Row = {"probability": round(float(probability.mean()), 6), "shares": shares}
    if folder is None:
        return row
    colors = colored(classes, np.array(predictor.card.palette, np.uint8))
    images = {"mask": classes, "colors": colors, "overlay": overlaid(image, colors)}
    for kind, ending in KINDS.items():
        place = folder / kind / f"{name}{ending}"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[kind]).save(place)
        row[kind] = printable(place)
    return row


def _read(path: Path) -> NDArray[np.uint8] | str:
    try:
        return read_image(path)
    except Problem as error:
        return error.cause


def _named(paths: Sequence[Path | str]) -> list[tuple[Path, str]]:
    """Return the images that the paths name, each with a unique name for its results."""
    if not paths:
        raise UserError("there is no image to predict", "give files, folders or a .txt list")
    found = [(path, file) for path in map(Path, paths) for file in find_files([path])]
    wanted = [str((file.relative_to(top) if top.is_dir() else Path(file.name)).with_suffix("")) for top, file in found]
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
