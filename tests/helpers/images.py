"""Images and data folders drawn for tests, and `read` with a check that the folder does not change."""

import hashlib
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from gpaco.data.readers.read import read
from gpaco.data.samples import Samples, Splits
from gpaco.errors import UserError


def drawing(width: int = 40, height: int = 30, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Return (height, width, 3): a gradient with a bright corner, so that every turn or flip changes it."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    ground = [x * 180 / width, y * 180 / height, (x + y) * 90 / (width + height)]
    image = np.stack(ground, axis=2) + rng.integers(0, 40, 3)
    image[: height // 4, : width // 3] = rng.integers(150, 256, 3)
    return image.round().astype(np.uint8)


def files_of_all_kinds() -> dict[str, bytes]:
    """A small image in every format and mode, by the end of its name."""
    noisy = drawing() ^ np.random.default_rng(0).integers(0, 64, (30, 40, 3), np.uint8)
    image = Image.fromarray(noisy)
    kinds: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "jpg": (image, {}),
        "cmyk.jpg": (image.convert("CMYK"), {}),
        "png": (image, {}),
        "16.png": (Image.fromarray(noisy[..., 0].astype(np.uint16) * 257), {}),
        "p.png": (image.quantize(8), {"transparency": 0}),
        "webp": (image, {}),
        "bmp": (image, {}),
        "tif": (image, {}),
        "lzw.tif": (image, {"compression": "tiff_lzw"}),
        "gif": (image.quantize(8), {}),
        "ppm": (image, {}),
    }
    formats = {"jpg": "JPEG", "tif": "TIFF"}
    files = {}
    for name, (image, options) in kinds.items():
        buffer = io.BytesIO()
        suffix = name.rsplit(".", 1)[-1]
        image.save(buffer, formats.get(suffix, suffix.upper()), **options)
        files[name] = buffer.getvalue()
    return files


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def zeros_png(width: int, height: int, color: int = 2, rows: int | None = None, extra: bytes = b"") -> bytes:
    """A PNG image of zeros, all of it or only some of its rows; `color` 0 is gray, 2 RGB, 6 RGBA."""
    channels = {0: 1, 2: 3, 6: 4}[color]
    packer = zlib.compressobj(1)
    row = bytes(1 + channels * width)
    packed = b"".join([packer.compress(row) for _ in range(height if rows is None else rows)]) + packer.flush()
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + png_chunk(b"IDAT", packed) + png_chunk(b"IEND", b"")


def save(path: Path, seed: int = 0, width: int = 12, height: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(drawing(width, height, seed)).save(path)
    return path


def class_folders(root: Path, counts: dict[str, int], seed: int = 0) -> Path:
    """Write a folder per class with this many PNG images, all different."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            seed += 1
            save(root / name / f"{i}.png", seed)
    return root


def photographs(root: Path, counts: dict[str, int]) -> Path:
    """Write a folder per class with this many JPEG images, too large to be kept in memory."""
    for k, (name, count) in enumerate(counts.items()):
        for i in range(count):
            save(root / name / f"{i}.jpg", 1000 * k + i, 80, 60)
    return root


def tree_hash(root: Path) -> str:
    """Return a hash of the names, contents and times of everything below a folder."""
    state = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        state.update(f"{path.relative_to(root)} {info.st_mode} {info.st_size} {info.st_mtime_ns}".encode())
        if path.is_file():
            state.update(path.read_bytes())
    return state.hexdigest()


def watched(path: Path, **options: Any) -> Splits:
    """Call `read`, after which the data must be unchanged."""
    folder = path if path.is_dir() else path.parent
    before = tree_hash(folder)
    try:
        return read(path, **options)
    finally:
        assert tree_hash(folder) == before


def refused(path: Path | str, **options: Any) -> UserError:
    """Return the error, after checking that cause and remedy have one line each."""
    with pytest.raises(UserError) as caught:
        watched(Path(path), **options) if Path(path).exists() else read(path, **options)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.cause + caught.value.remedy
    assert caught.value.cause
    assert caught.value.remedy
    return caught.value


def labeled(samples: Samples | None) -> list[tuple[str, str]]:
    return [(name, samples.classes[label]) for name, label in zip(samples.names, samples.labels, strict=True)]
