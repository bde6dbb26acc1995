"""MNIST-style idx files, gzipped or not: MNIST, Fashion-MNIST, KMNIST and others in this format."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from gpaco.data.images import Pixels
from gpaco.data.samples import Samples, Splits
from gpaco.errors import UserError


def idx_folder(path: Path) -> Path | None:
    """Return the folder with the training images: this one, `raw` in it, or that of the given file; otherwise None."""
    if path.is_file():
        return path.parent if "idx" in path.name and _file(path.parent, "train", "images", 3) else None
    return next((folder for folder in (path, path / "raw") if _file(folder, "train", "images", 3)), None)


def read_idx(folder: Path) -> Splits:
    """Read `train-images-idx3-ubyte[.gz]` and its companions, gray as RGB, and the test files if there are any.

    Classes are named by their number.
    """
    train = _read_pair(folder, "train")
    test = next((_read_pair(folder, word) for word in ("t10k", "test") if _file(folder, word, "images", 3)), None)
    largest = max(int(labels.max(initial=0)) for _, labels in (train, test or train))
    classes = tuple(map(str, range(largest + 1)))
    return Splits(_samples(*train, classes, "train"), None, test and _samples(*test, classes, "test"), "idx files")


def _samples(images: Pixels, labels: Pixels, classes: tuple[str, ...], split: str) -> Samples:
    colors = np.repeat(images[..., None], 3, axis=3)
    names = tuple(f"{split}/{i}" for i in range(len(labels)))
    return Samples(labels.astype(np.int64), classes, images=colors, names=names)


def _read_pair(folder: Path, part: str) -> tuple[Pixels, Pixels]:
    images, labels = _read(folder, part, "images", 3), _read(folder, part, "labels", 1)
    if len(images) != len(labels):
        raise UserError(
            f"{str(folder)!r} has {len(images)} images but {len(labels)} labels of {part!r}",
            "take both files from the same data set",
        )
    return images, labels


def _file(folder: Path, part: str, what: str, dims: int) -> Path | None:
    names = [f"{part}-{what}{mark}idx{dims}-ubyte{end}" for mark in "-." for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read(folder: Path, part: str, what: str, dims: int) -> Pixels:
    """Return the array in a file, whose size must match its header."""
    path = _file(folder, part, what, dims)
    if path is None:
        raise UserError(f"{str(folder)!r} has no {what} of {part!r}", f"add {part}-{what}-idx{dims}-ubyte")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if data[:4] != bytes((0, 0, 8, dims)):
            raise ValueError(f"its header does not say uint8 with {dims} dimensions")
        shape = np.frombuffer(data, ">u4", dims, 4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * dims).reshape(tuple(shape))
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{str(path)!r} is not an idx file, or damaged: {error}", "download the file again") from error
