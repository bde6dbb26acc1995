"""CIFAR-10 and CIFAR-100 as published: pickles in a folder or in the `.tar.gz`, which is read and never unpacked.

A pickle can run code: these may build only arrays and plain values.
"""

import gzip
import hashlib
import io
import pickle
import tarfile
import zlib
from collections.abc import Container
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpaco.data.samples import Samples, Splits
from gpaco.errors import UserError
from gpaco.system.words import one_line

_AGAIN = "download the data set again from its website"


class _Layout(NamedTuple):
    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    labels: str
    names: str
    md5: str  # of the published archive


_LAYOUTS = (
    _Layout(
        name="CIFAR-10",
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test="test_batch",
        meta="batches.meta",
        labels="labels",
        names="label_names",
        md5="c58f30108f718f92721af3b95e74349a",
    ),
    _Layout(
        name="CIFAR-100",
        folder="cifar-100-python",
        train=("train",),
        test="test",
        meta="meta",
        labels="fine_labels",
        names="fine_label_names",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
    ),
)
_FILES = frozenset(name for layout in _LAYOUTS for name in (*layout.train, layout.test, layout.meta))


def cifar_folder(path: Path) -> Path | None:
    """Return the folder with the pickles: this one or one in it; otherwise None."""
    places = [path, *(path / layout.folder for layout in _LAYOUTS)]
    found = [place for place in places if _layout_of({name for name in _FILES if (place / name).is_file()})]
    if len(found) > 1:
        raise UserError(f"{str(path)!r} has both CIFAR-10 and CIFAR-100", f"give one of them: {found[0]}")
    return found[0] if found else None


def is_cifar(path: Path) -> bool:
    """Return whether the first file of a tar archive is a CIFAR pickle; also True if it cannot be opened."""
    try:
        with tarfile.open(path) as archive:
            first = next((member.name for member in archive if member.isreg()), "")
    except tarfile.TarError:
        return True  # `read_cifar` explains it
    return first.rpartition("/")[2] in _FILES


def read_cifar(path: Path) -> Splits:
    """Read CIFAR-10 or CIFAR-100 (fine labels) from a folder of pickles or an archive, with all images in memory."""
    packed = path.is_file()
    files = (
        _unpacked(path) if packed else {file.name: file.read_bytes() for file in path.iterdir() if file.name in _FILES}
    )
    layout = _layout_of(files)
    if layout is None:
        remedy = "unpack other archives, and give the folder of class folders"
        raise UserError(f"{str(path)!r} has no files of CIFAR-10 or CIFAR-100", remedy)
    names = _load(files, layout.meta).get(layout.names)
    if not isinstance(names, list) or not names:
        raise _wrong(layout.meta, f"no list {layout.names!r}")
    classes = tuple(
        name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name) for name in names
    )
    train = _samples(files, layout, "train", layout.train, classes)
    test = _samples(files, layout, "test", (layout.test,), classes)
    notes = []
    if packed and hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != layout.md5:
        notes.append(f"{path.name} is not the published archive: its MD5 is not {layout.md5}")
    if (len(train), len(test)) != (50_000, 10_000):
        notes.append(f"{len(train)} training and {len(test)} test images; the published set has 50000 and 10000")
    return Splits(train, None, test, layout.name, tuple(notes))


def _samples(
    files: dict[str, bytes], layout: _Layout, split: str, members: tuple[str, ...], classes: tuple[str, ...]
) -> Samples:
    images: list[npt.NDArray[np.uint8]] = []
    labels: list[int] = []
    for name in members:
        content = _load(files, name)
        rows, found = content.get("data"), content.get(layout.labels)
        if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 3072:
            raise _wrong(name, "'data' is not an array of (N, 3072) bytes")
        if not isinstance(found, list) or len(found) != len(rows):
            raise _wrong(name, f"no list {layout.labels!r} with a label for each of {len(rows)} images")
        if not all(isinstance(label, int) and 0 <= label < len(classes) for label in found):
            raise _wrong(name, f"labels that are not 0 to {len(classes) - 1}")
        images.append(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels += found
    pixels = np.ascontiguousarray(np.concatenate(images))
    return Samples(np.array(labels), classes, images=pixels, names=tuple(f"{split}/{i}" for i in range(len(labels))))


def _wrong(name: str, what: str) -> UserError:
    return UserError(f"{name!r} is not a CIFAR file: {what}", _AGAIN)


# Everything that the pickle of an array refers to. The extra arguments that old pickles pass to dtype make NumPy warn.
_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): lambda name, *_: np.dtype(name),
    ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy._core.numeric", "_frombuffer"): np.empty(0).__reduce_ex__(5)[0],
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _KNOWN.get((module.replace("numpy.core", "numpy._core"), name))
        if found is None:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no array needs")
        return found


def _load(files: dict[str, bytes], name: str) -> dict[str, Any]:
    """Return the dictionary in a pickle, with its keys as text."""
    if name not in files:
        raise UserError(f"CIFAR is incomplete: {name!r} is missing", _AGAIN)
    try:
        content = _Unpickler(io.BytesIO(files[name]), encoding="bytes").load()
        return {key.decode() if isinstance(key, bytes) else str(key): item for key, item in content.items()}
    except Exception as error:  # a damaged pickle can raise anything
        raise _wrong(name, f"it cannot be unpickled ({type(error).__name__}: {one_line(error)})") from error


def _layout_of(files: Container[str]) -> _Layout | None:
    """Return the data set whose training and test files are present. The two have no file names in common."""
    return next((layout for layout in _LAYOUTS if layout.train[0] in files and layout.test in files), None)


def _unpacked(path: Path) -> dict[str, bytes]:
    """Read the files of an archive, in one pass."""
    files = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                stream = archive.extractfile(member) if member.isreg() and name in _FILES else None
                if stream is not None:
                    files[name] = stream.read()
            while archive.fileobj and archive.fileobj.read(1 << 20):  # the checksum comes last
                pass
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"the archive {str(path)!r} is damaged or not an archive", _AGAIN) from error
    return files
