"""MNIST-style idx files, packed or not: MNIST, Fashion-MNIST, KMNIST and others in their form."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpaco.data.samples import Samples, Splits, with_training_images
from gpaco.errors import UserError

_MAX_BYTES = 1 << 30
_TEST_WORDS = ("t10k", "test")


def idx_folder(path: Path) -> Path | None:
    """The folder with the training images: this one or `raw` in it, or the one of the file given; None if none."""
    if path.is_file():
        return path.parent if "idx" in path.name and _file(path.parent, "train", "images") else None
    return next((folder for folder in (path, path / "raw") if _file(folder, "train", "images")), None)


def read_idx(path: Path, *, allow_empty_classes: bool = False) -> Splits:
    """The images of `train-images-idx3-ubyte[.gz]` and its companions, grey as RGB; test files if they are there.

    Classes are named by their number.
    """
    folder = idx_folder(path)
    if folder is None:
        raise UserError(f"{str(path)!r} has no idx files", "they are called train-images-idx3-ubyte and so on")
    train_images, train_labels = _read_pair(folder, "train")
    test = next((word for word in _TEST_WORDS if _file(folder, word, "images")), None)
    test_images, test_labels = (None, np.array([], np.uint8)) if test is None else _read_pair(folder, test)
    classes = tuple(map(str, range(int(max(train_labels.max(initial=0), test_labels.max(initial=0))) + 1)))
    splits = Splits(
        _samples(train_images, train_labels, classes, "train"),
        None,
        None if test_images is None else _samples(test_images, test_labels, classes, "test"),
        "idx files",
    )
    return with_training_images(splits, allow_empty_classes)


def _samples(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8], classes: tuple[str, ...], split: str
) -> Samples:
    colours = np.repeat(images[..., None], 3, axis=3)
    names = tuple(f"{split}/{i}" for i in range(len(labels)))
    return Samples(labels.astype(np.int64), classes, images=colours, names=names)


def _read_pair(folder: Path, part: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    images_file, labels_file = _file(folder, part, "images"), _file(folder, part, "labels")
    if images_file is None or labels_file is None:
        raise UserError(f"{str(folder)!r} has the images of {part!r} but not its labels", "add the file of labels")
    images, labels = _read(images_file, 3), _read(labels_file, 1)
    if len(images) != len(labels):
        raise UserError(
            f"{images_file.name} has {len(images)} images but {labels_file.name} has {len(labels)} labels",
            "take both files from one data set",
        )
    return images, labels


def _file(folder: Path, part: str, what: str) -> Path | None:
    dims = 3 if what == "images" else 1
    names = [f"{part}-{what}{mark}idx{dims}-ubyte{end}" for mark in "-." for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read(path: Path, dims: int) -> npt.NDArray[np.uint8]:
    """The array of a file, whose size must be exactly what its header says."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            header = stream.read(4 + 4 * dims)
            if len(header) < 4 + 4 * dims or header[:4] != bytes((0, 0, 8, dims)):
                raise _wrong(path, f"it does not start as a file of bytes with {dims} dimensions")
            shape = struct.unpack(f">{dims}I", header[4:])
            size = math.prod(shape)
            if size > _MAX_BYTES or size == 0:
                raise _wrong(path, f"its header says {' x '.join(map(str, shape))}")
            data = stream.read(size + 1)  # one more, to see that it ends there
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _wrong(path, str(error)) from error
    if len(data) != size:
        raise _wrong(path, f"its header says {size} bytes, there are {'more' if len(data) > size else len(data)}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _wrong(path: Path, why: str) -> UserError:
    return UserError(f"{str(path)!r} is not an idx file or damaged: {why}", "fetch the file again")
