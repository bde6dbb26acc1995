"""CIFAR-10 and CIFAR-100 as published: pickles in a folder or in the `.tar.gz`, which is read and never unpacked.

Beside `gpaco convert` this is all that reads pickles. A pickle is a program; the one here may build dictionaries,
lists, numbers, text and arrays, and names no function that runs. Even numpy is kept from it: arrays arrive as a type,
a shape and bytes, and are put together here after they were checked.
"""

import gzip
import io
import pickle
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from gpaco.data.samples import Samples, Splits, with_training_images
from gpaco.errors import UserError

_MAX_FILE = 200 << 20  # the largest published file has 148 MiB
_MAX_TOTAL = 400 << 20  # of everything in an archive; published: 178 MiB
_MAX_MEMBERS = 1000


@dataclass(frozen=True)
class _Layout:
    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    labels: str
    names: str


_LAYOUTS = (
    _Layout(
        name="CIFAR-10",
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test="test_batch",
        meta="batches.meta",
        labels="labels",
        names="label_names",
    ),
    _Layout(
        name="CIFAR-100",
        folder="cifar-100-python",
        train=("train",),
        test="test",
        meta="meta",
        labels="fine_labels",
        names="fine_label_names",
    ),
)


def cifar_folder(path: Path) -> Path | None:
    """The folder with the pickles: this one or one in it; None if there is none."""
    places = [path, *(path / layout.folder for layout in _LAYOUTS)]
    found = [place for place in places if _layout_of(place)]
    if len(found) > 1:
        raise UserError(f"{str(path)!r} has both CIFAR-10 and CIFAR-100", f"give one of them: {found[0]}")
    return found[0] if found else None


def read_cifar(path: Path, *, allow_empty_classes: bool = False) -> Splits:
    """CIFAR-10 or CIFAR-100 (fine labels) from the folder of pickles or the archive, all images in memory."""
    if path.is_dir():
        layout = _layout_of(path)
        if layout is None:
            raise UserError(
                f"{str(path)!r} has no CIFAR files", "they are called data_batch_1 ... or train, test, meta"
            )
        members = {name: _file_bytes(path / name) for name in _members(layout) if (path / name).is_file()}
    else:
        layout, members = _archive_bytes(path)
    missing = [name for name in _members(layout) if name not in members]
    if missing:
        raise UserError(f"{layout.name} in {str(path)!r} is not complete: {missing[0]!r} is missing", "fetch it again")
    return with_training_images(_splits(layout, members), allow_empty_classes)


def _splits(layout: _Layout, members: Mapping[str, bytes]) -> Splits:
    meta = _Pickle(members[layout.meta], layout.meta).value()
    names = meta.get(layout.names)
    if not isinstance(names, list) or not names or not all(isinstance(name, bytes | str) for name in names):
        raise _wrong(layout.meta, f"no list {layout.names!r}")
    classes = tuple(name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name for name in names)
    train = [_batch(layout, members[name], name, len(classes)) for name in layout.train]
    images = np.concatenate([images for images, _ in train])
    labels = np.concatenate([labels for _, labels in train])
    test_images, test_labels = _batch(layout, members[layout.test], layout.test, len(classes))
    notes = []
    if (len(labels), len(test_labels)) != (50_000, 10_000):
        notes.append(f"{len(labels)} training and {len(test_labels)} test images, published are 50000 and 10000")
    return Splits(
        Samples(labels, classes, images=images, names=_numbered("train", labels)),
        None,
        Samples(test_labels, classes, images=test_images, names=_numbered("test", test_labels)),
        layout.name,
        tuple(notes),
    )


def _numbered(split: str, labels: npt.NDArray[np.int64]) -> tuple[str, ...]:
    return tuple(f"{split}/{i}" for i in range(len(labels)))


def _batch(
    layout: _Layout, data: bytes, name: str, num_classes: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    content = _Pickle(data, name).value()
    array, labels = content.get("data"), content.get(layout.labels)
    if not isinstance(array, _Array):
        raise _wrong(name, "no array 'data'")
    rows = array.bytes_of_shape(name)
    if not isinstance(labels, list) or len(labels) != len(rows):
        raise _wrong(name, f"no list {layout.labels!r} with a label for each of {len(rows)} images")
    if not all(isinstance(label, int) and 0 <= label < num_classes for label in labels):
        raise _wrong(name, f"labels that are not 0 to {num_classes - 1}")
    images = rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.array(labels, np.int64)


def _wrong(name: str, what: str) -> UserError:
    return UserError(f"{name!r} is not a CIFAR file: {what}", "fetch the data set again from where it is published")


class _Array:
    """An array as a pickle describes it: (version, shape, type, column order, bytes)."""

    state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def bytes_of_shape(self, name: str) -> npt.NDArray[np.uint8]:
        """The pixels, (N, 3072) uint8."""
        match self.state:
            case (_, (int(rows), 3072), _Type(name="u1" | "|u1" | "uint8"), False | 0, bytes(data)):
                if len(data) == 3072 * rows:
                    return np.frombuffer(data, np.uint8).reshape(rows, 3072)
        raise _wrong(name, "its array is not (N, 3072) bytes")


class _Type:
    name: object

    def __init__(self, name: object) -> None:
        self.name = name.decode("latin-1") if isinstance(name, bytes) else name

    def __setstate__(self, state: object) -> None:
        pass  # byte order and padding: none for bytes


class _Pickle(pickle._Unpickler):
    """Reads plain values and arrays. In Python and not in C, whose table of values can be made to fill all memory.

    A bytearray is read as bytes are: no more of it is made than the file has.
    """

    dispatch = pickle._Unpickler.dispatch | {
        pickle.BYTEARRAY8[0]: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]],
    }

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self._name = name

    def value(self) -> dict[str, Any]:
        """The dictionary in the pickle, its keys as text."""
        try:
            content = self.load()
        except UserError:
            raise
        except Exception as error:  # a damaged program fails in any way
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise _wrong(self._name, f"a damaged pickle ({type(error).__name__}: {reason[:200]})") from error
        if not isinstance(content, dict):
            raise _wrong(self._name, f"it holds a {type(content).__name__}, not a dictionary")
        return {key.decode("latin-1") if isinstance(key, bytes) else str(key): item for key, item in content.items()}

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a global: our own reading of an array, never the global itself."""
        match module, name:
            case ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct"):
                return self._array
            case ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar"):
                return self._scalar
            case ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer"):
                return self._from_buffer
            case "numpy", "ndarray":
                return "ndarray"
            case "numpy", "dtype":
                return self._type
            case "_codecs", "encode":
                return self._encode
        raise UserError(
            f"refused: the pickle {self._name!r} asks for {f'{module}.{name}'[:200]!r}, which no array needs",
            "it may be an attack: delete it, and fetch the data set again from where it is published",
        )

    def _array(self, *_: object) -> _Array:
        return _Array()

    def _from_buffer(self, data: object, kind: object, shape: object, order: object = "C") -> _Array:
        array = _Array()
        array.state = (1, shape, kind, order == "F", data)
        return array

    def _type(self, name: object, *_: object) -> _Type:
        return _Type(name)

    def _scalar(self, kind: _Type, data: bytes) -> int:
        if kind.name not in ("u1", "i4", "i8"):
            raise _wrong(self._name, f"a number of type {kind.name!r}")
        return int.from_bytes(data, "little", signed=kind.name != "u1")

    def _encode(self, text: object, encoding: object) -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise _wrong(self._name, "text in an encoding that arrays do not use")
        return text.encode("latin-1")


def _members(layout: _Layout) -> tuple[str, ...]:
    return (*layout.train, layout.test, layout.meta)


def _layout_of(folder: Path) -> _Layout | None:
    """A data set whose training and test files are here, as files."""
    there = (layout for layout in _LAYOUTS if all((folder / n).is_file() for n in (layout.train[0], layout.test)))
    return next(there, None)


def _file_bytes(path: Path) -> bytes:
    size = path.stat().st_size
    if size > _MAX_FILE:
        raise _wrong(path.name, f"{size >> 20} MB, more than the limit of {_MAX_FILE >> 20} MB")
    return path.read_bytes()


class _Limited(io.RawIOBase):
    """A stream that ends in a `UserError` when more comes out of it than there can be."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise UserError(
                f"the archive holds more than {_MAX_TOTAL >> 20} MB, far more than CIFAR has", "fetch it again"
            )
        return data


def _archive_bytes(path: Path) -> tuple[_Layout, dict[str, bytes]]:
    """The pickles of an archive, read one after another as they come. Links and other names are not looked at."""
    wanted = {f"{layout.folder}/{name}": (layout, name) for layout in _LAYOUTS for name in _members(layout)}
    found: dict[str, bytes] = {}
    layouts: list[_Layout] = []
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            plain = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
            limited = _Limited(plain, _MAX_TOTAL)
            with tarfile.open(fileobj=limited, mode="r|", bufsize=1 << 20) as archive:
                for number, member in enumerate(archive):
                    if number >= _MAX_MEMBERS:
                        raise _wrong(path.name, f"it has more than {_MAX_MEMBERS} members")
                    if member.name.removeprefix("./") not in wanted:
                        continue
                    layout, name = wanted[member.name.removeprefix("./")]
                    stream = archive.extractfile(member) if member.isreg() else None
                    if stream is None:
                        raise _wrong(path.name, f"its member {member.name!r} is not a file but a link or folder")
                    if member.size > _MAX_FILE:
                        raise _wrong(path.name, f"its member {member.name!r} has {member.size >> 20} MB")
                    layouts.append(layout)
                    found[name] = stream.read()
            while limited.read(1 << 20):  # to the end, where the checksum is
                pass
    except (tarfile.TarError, EOFError, zlib.error, ValueError, OSError) as error:
        if isinstance(error, UserError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise UserError(f"cannot read archive {str(path)!r}: {error}", "fetch it again") from error
    if not layouts:
        raise UserError(
            f"{str(path)!r} is not an archive of CIFAR-10 or CIFAR-100",
            "unpack other archives and give the folder of class folders",
        )
    if any(layout is not layouts[0] for layout in layouts):
        raise _wrong(path.name, "it has both CIFAR-10 and CIFAR-100")
    return layouts[0], found
