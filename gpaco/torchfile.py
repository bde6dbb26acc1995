"""Tensors out of a file of `torch.save`, as safetensors. What is in its pickle is only ever data (unpickling.py).

Read are torch's two formats: an archive (since torch 1.6: `data.pkl`, and a member for each storage, never compressed)
and, before that, five pickles and the storages behind them. Standard library only: this runs in a process that has
nothing else (confined.py).
"""

import io
import json
import math
import re
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, BinaryIO, NamedTuple

from gpaco.unpickling import Made, Name, Pointed, Refused, kind, read_pickle, shown

_PICKLE = 64 << 20  # bytes; those of real checkpoints have one or two million
_DIMENSIONS = 16
_HEADER = 100_000_000  # bytes; readers of safetensors refuse more
_MAGIC = 0x1950A86A20F9469CFC6C  # first in a file of the older format

# Storages by name: what safetensors calls their numbers, and the bytes of one.
_STORAGES = {
    "torch.DoubleStorage": ("F64", 8),
    "torch.FloatStorage": ("F32", 4),
    "torch.HalfStorage": ("F16", 2),
    "torch.BFloat16Storage": ("BF16", 2),
    "torch.LongStorage": ("I64", 8),
    "torch.IntStorage": ("I32", 4),
    "torch.ShortStorage": ("I16", 2),
    "torch.CharStorage": ("I8", 1),
    "torch.ByteStorage": ("U8", 1),
    "torch.BoolStorage": ("BOOL", 1),
}
_TENSORS = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2")
_PARAMETER = "torch._utils._rebuild_parameter"
SETTINGS = "argparse.Namespace"
NO_NEED = "safetensors already: it needs no conversion"
_NUMPY = {f"numpy.{core}.multiarray.{what}" for core in ("core", "_core") for what in ("_reconstruct", "scalar")}
# Every global that a file may name. Arrays of numpy and settings are passed over: they stay notes.
ALLOWED = frozenset(
    {*_STORAGES, *_TENSORS, _PARAMETER, SETTINGS, *_NUMPY, "numpy.ndarray", "numpy.dtype"}
    | {"collections.OrderedDict", "_codecs.encode"}
)
STATES = ("state_dict", "model", "model_state_dict")  # where in a checkpoint the tensors may be


@dataclass(frozen=True)
class Stored:
    """A storage: what its numbers are called, the bytes of one, where they are, how many."""

    type: str
    width: int
    key: str
    count: int


@dataclass(frozen=True)
class View:
    """A tensor: numbers of a storage."""

    stored: Stored
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.size) * self.stored.width


class Source(NamedTuple):
    """What a file says it holds, and how the bytes of a storage are read."""

    value: Any
    read: Callable[[Stored], bytes]


# The two formats


def open_source(file: BinaryIO, names: dict[str, None]) -> Source:
    """The content of a file in either format. `names` is filled with every global in it."""
    start = file.read(512)
    if start.startswith(b"PK\x03\x04"):
        return _from_archive(file, names)
    if start[:1] == b"\x80" and _MAGIC.to_bytes(10, "little") in start[:20]:
        return _from_pickles(file, names)
    raise Refused(f"it is not a file of torch.save but {_looks_like(start)}")


def _looks_like(start: bytes) -> str:
    if not start:
        return "an empty one"
    if start.startswith(b"version https://git-lfs"):
        return "a pointer of git LFS: fetch the file itself"
    if start.lstrip()[:1] == b"<":
        return "a web page: the download went wrong"
    if start[257:262] == b"ustar":
        return "a tar archive, as torch wrote until 2017"
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < _HEADER:
        return NO_NEED
    return "a bare pickle" if start[:1] == b"\x80" else "something else"


def _from_archive(file: BinaryIO, names: dict[str, None]) -> Source:
    length = file.seek(0, io.SEEK_END)
    archive = zipfile.ZipFile(file)
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        path = member.filename
        if path in members or path.startswith("/") or "\\" in path or ".." in path.split("/"):
            raise Refused(f"its archive has a member {shown(path)}, which no file of torch.save has")
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise Refused(f"the member {shown(path)} of its archive is compressed or encrypted")
        members[path] = member
    if sum(member.file_size for member in members.values()) > length:
        raise Refused("the members of its archive are larger than the file")
    pickles = [path for path in members if re.fullmatch(r"[^/]+/data\.pkl", path)]
    if len(pickles) != 1:
        raise Refused("its archive has no data.pkl: it is not a file of torch.save")
    root = pickles[0].removesuffix("/data.pkl")
    if f"{root}/byteorder" in members and archive.read(f"{root}/byteorder") != b"little":
        raise Refused("its numbers are big-endian")
    if members[pickles[0]].file_size > _PICKLE:
        raise Refused(f"its pickle has {members[pickles[0]].file_size:,} bytes")
    content = read_pickle(io.BytesIO(archive.read(pickles[0])), ALLOWED, names)

    def read(stored: Stored) -> bytes:
        path = f"{root}/data/{stored.key}"
        if path not in members:
            raise Refused(f"the numbers of storage {shown(stored.key)} are missing")
        if members[path].file_size != stored.count * stored.width:
            raise Refused(
                f"storage {shown(stored.key)} should have {stored.count:,} numbers of {stored.width} bytes, "
                f"there are {members[path].file_size:,} bytes"
            )
        return archive.read(path)

    return Source(content.value, read)


def _from_pickles(file: BinaryIO, names: dict[str, None]) -> Source:
    """Five pickles: a number, a version, the machine, the content, the keys of its storages; then the storages."""
    length = file.seek(0, io.SEEK_END)
    file.seek(0)
    stream = io.BytesIO(file.read(_PICKLE))
    magic, version, machine, content, keys = (read_pickle(stream, ALLOWED, names) for _ in range(5))
    if magic.value != _MAGIC or version.value != 1001 or not isinstance(machine.value, dict):
        raise Refused("it does not begin as a file of torch.save does")
    if machine.value.get("little_endian") is not True:
        raise Refused("its numbers are big-endian")
    storages = {stored.key: stored for stored in map(stored_of, content.pointed)}
    if not isinstance(keys.value, list) or len(keys.value) != len(storages):
        raise Refused("its list of storages is not that of its content")
    places, place = {}, stream.tell()
    for key in keys.value:
        if not isinstance(key, str) or key not in storages:
            raise Refused("its list of storages is not that of its content")
        file.seek(place)
        if file.read(8) != struct.pack("<q", storages[key].count):
            raise Refused(f"storage {shown(key)} has another length than its content says, or is missing")
        places[key] = place + 8
        place += 8 + storages[key].count * storages[key].width
    if place > length:
        raise Refused(f"it ends after {length:,} bytes and should have {place:,}")

    def read(stored: Stored) -> bytes:
        if storages.get(stored.key) != stored or stored.key not in places:
            raise Refused(f"the numbers of storage {shown(stored.key)} are missing")
        file.seek(places[stored.key])
        return file.read(stored.count * stored.width)

    return Source(content.value, read)


# From notes to tensors


def stored_of(pointed: Pointed) -> Stored:
    """The storage that a pickle points to."""
    match pointed.by:
        case ("storage", Name(text), str(key), str(), count, *view) if view in ([], [None]) and text in _STORAGES:
            return Stored(*_STORAGES[text], key, _whole(count))
    raise Refused("its pickle points to something that is no storage")


def state_of(value: Any) -> tuple[str, dict[str, View]]:
    """Where in the content the tensors are ("" for the content itself), and the tensors by name."""
    if not isinstance(value, dict):
        raise Refused(f"it holds {kind(value)}, not a dictionary of tensors")
    where = next((key for key in STATES if isinstance(value.get(key), dict)), "")
    tensors = {}
    for key, item in (value[where] if where else value).items():
        if not isinstance(key, str):
            raise Refused(f"its tensors are named by {kind(key)}, not by text")
        if not key.isprintable() or len(key) > 500:
            raise Refused(f"a tensor in it is called {shown(key)}")
        tensors[key] = view_of(item, key)
    if not tensors:
        raise Refused("it holds no tensor")
    return where, tensors


def view_of(item: Any, key: str) -> View:
    """The tensor that a note describes, every number of it checked."""
    if isinstance(item, Made) and item.by == _PARAMETER and item.arguments:
        item = item.arguments[0]
    if not isinstance(item, Made) or item.by not in _TENSORS:
        raise Refused(f"{shown(key)} in it is {kind(item)}, not a tensor")
    match item.arguments:
        case (Pointed() as pointed, offset, tuple(size), tuple(stride), *_) if len(size) == len(stride) <= _DIMENSIONS:
            view = View(stored_of(pointed), _whole(offset), tuple(map(_whole, size)), tuple(map(_whole, stride)))
        case _:
            raise Refused(f"the tensor {shown(key)} is not described as torch does it")
    steps = [(n, step) for n, step in zip(view.size, view.stride, strict=True) if n > 1]
    if 0 not in size and view.offset + sum((n - 1) * step for n, step in steps) >= view.stored.count:
        raise Refused(f"the tensor {shown(key)} reaches beyond the {view.stored.count:,} numbers of its storage")
    if math.prod(size) > view.stored.count or any(step == 0 for _, step in steps):
        raise Refused(f"the tensor {shown(key)} repeats numbers of its storage")
    return view


def _whole(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 2**48:
        raise Refused("a size or a place in it is not a number that can be")
    return number


def dense(data: bytes, view: View) -> memoryview:
    """The bytes of a tensor in the order of its dimensions."""
    width, size = view.stored.width, view.size
    order = [math.prod(size[d + 1 :]) for d in range(len(size))]
    if 0 in size or all(n == 1 or a == b for n, a, b in zip(size, view.stride, order, strict=True)):
        return memoryview(data)[view.offset * width : view.offset * width + view.bytes]
    letter: Any = {1: "B", 2: "H", 4: "I", 8: "Q"}[width]
    source, result = memoryview(data).cast(letter), memoryview(bytearray(view.bytes)).cast(letter)
    along = size.index(max(size))  # the longest dimension goes in one piece, the others one by one
    others = [d for d in range(len(size)) if d != along]
    for index in product(*(range(size[d]) for d in others)):
        start = view.offset + sum(i * view.stride[d] for i, d in zip(index, others, strict=True))
        place = sum(i * order[d] for i, d in zip(index, others, strict=True))
        result[_slice(place, order[along], size[along])] = source[_slice(start, view.stride[along], size[along])]
    flat: memoryview = result.cast("B")
    return flat


def _slice(start: int, step: int, count: int) -> slice:
    return slice(start, start + (count - 1) * step + 1, step)


def write(tensors: dict[str, View], read: Callable[[Stored], bytes], out: BinaryIO, most: int) -> None:
    """Tensors as safetensors. Wide numbers come first, so that all are aligned."""
    names = sorted(tensors, key=lambda name: (-tensors[name].stored.width, name))
    header, place = {}, 0
    for name in names:
        view = tensors[name]
        offsets = [place, place := place + view.bytes]
        header[name] = {"dtype": view.stored.type, "shape": view.size, "data_offsets": offsets}
    text = json.dumps(header).encode()
    if place > most or len(text) > _HEADER - 8:
        raise Refused("its tensors share their numbers so often that they would be far larger than the file")
    text += b" " * (-len(text) % 8)
    out.write(struct.pack("<Q", len(text)) + text)
    cached = lru_cache(maxsize=1)(read)
    for name in names:
        out.write(dense(cached(tensors[name].stored), tensors[name]))
    out.flush()
