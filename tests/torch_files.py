"""Files as `torch.save` would write them, put together by hand: with any pickle and any bytes inside."""

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

PUT = "archive/data.pkl"
MAGIC = 0x1950A86A20F9469CFC6C


def text(word: str) -> bytes:
    """The instruction that pushes a text."""
    encoded = word.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def name(module: str, word: str) -> bytes:
    """The instruction that pushes a global."""
    return f"c{module}\n{word}\n".encode()


def call(module: str, word: str, *arguments: bytes) -> bytes:
    """Instructions that call a global."""
    return name(module, word) + b"(" + b"".join(arguments) + b"tR"


def storage(count: int, key: str = "0", kind: str = "FloatStorage") -> bytes:
    """Instructions that point to a storage."""
    return b"(" + text("storage") + name("torch", kind) + text(key) + text("cpu") + number(count) + b"tQ"


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value) if abs(value) < 1 << 31 else f"L{value}L\n".encode()


def sizes(*values: int) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def tensor(size: tuple[int, ...], stride: tuple[int, ...], *, offset: int = 0, count: int = 4) -> bytes:
    """Instructions that make a tensor out of storage 0."""
    hooks = call("collections", "OrderedDict")
    return call(
        "torch._utils",
        "_rebuild_tensor_v2",
        storage(count),
        number(offset),
        sizes(*size),
        sizes(*stride),
        b"\x89",
        hooks,
    )


def program(*values: bytes) -> bytes:
    """A pickle of a dictionary: a good tensor "w", and the values beside it."""
    items = text("w") + tensor((4,), (1,))
    for k, value in enumerate(values):
        items += text(f"x{k}") + value
    return b"\x80\x02}(" + items + b"u."


def archive(
    path: Path, content: bytes, *, data: bytes = bytes(16), more: dict[str, bytes] | None = None, packed: bool = False
) -> Path:
    """A file in the newer format."""
    members = {PUT: content, "archive/byteorder": b"little", "archive/data/0": data, "archive/version": b"3\n"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as file:
        for member, value in (members | (more or {})).items():
            file.writestr(zipfile.ZipInfo(member), value, zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED)
    return path


def legacy(path: Path, content: bytes, *, data: bytes = bytes(16), system: bytes | None = None) -> Path:
    """A file in the older format."""
    machine: dict[str, Any] = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}
    out = io.BytesIO()
    for value in (MAGIC, 1001):
        pickle.dump(value, out, protocol=2)
    out.write(pickle.dumps(machine, protocol=2) if system is None else system)
    out.write(content + pickle.dumps(["0"], protocol=2) + struct.pack("<q", 4) + data)
    path.write_bytes(out.getvalue())
    return path
