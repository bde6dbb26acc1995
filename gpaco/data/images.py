"""Reads an image file as RGB pixels, or raises a `UserError` that names the file."""

import errno
import io
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, UnidentifiedImageError

from gpaco.data.members import File, Member
from gpaco.errors import EnvironmentProblem, UserError, installing
from gpaco.system.words import one_line

Pixels = npt.NDArray[np.uint8]

_MAX_ASPECT = 100
_MAX_PIXELS = 2**27  # decoding takes up to 7 bytes per pixel: less than a gigabyte
_STRIP = 2**20  # pixels converted at a time
Image.MAX_IMAGE_PIXELS = None  # Pillow would warn at half of that; `_opened` checks the size of every image
_PAUSES = (0.1, 0.5, 2.0)  # seconds before a file is read again
_HEIF = "HEIF"  # what iPhones write; Pillow needs a package for it
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")
# Only these formats are opened. They are recognized by content, not by suffix.
_SUFFIXES = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "BMP": (".bmp", ".dib"),
    "TIFF": (".tif", ".tiff"),
    "GIF": (".gif",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    _HEIF: (".heic", ".heif"),
}
SUFFIXES = frozenset(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)
_ORIENTATION = 0x0112
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}


class BadImageError(UserError):
    """A file that cannot be read as an image, with the reason."""

    def __init__(self, path: str | File, reason: str) -> None:
        super().__init__(
            f"cannot read image {str(path)!r}: {reason}",
            "repair or remove the file (`gpaco check` lists all); with `train`, --on-bad-image skip leaves them out",
        )
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type["BadImageError"], tuple[str | File, str]]:
        return BadImageError, (self.path, self.reason)  # so that it can be pickled by a worker process


@dataclass(frozen=True)
class Facts:
    """The size of an upright image, and in `odd` what is unusual about it."""

    width: int
    height: int
    odd: tuple[str, ...]


def read_image(path: str | File, least: int = 0) -> Pixels:
    """Return the image in a JPEG, PNG, WebP, BMP, TIFF, GIF or PPM file as (H, W, 3) uint8 RGB, turned upright.

    If `least` pixels of the shorter side are enough, a large JPEG is decoded at half, a quarter or an eighth of its
    size, which is faster. At least twice as many pixels remain, so that resizing still smooths them.

    Transparent parts become white. Of animated and multi-page files, the first frame is used. 16-bit grays are scaled
    from the smallest of 8, 12 and 16 bits that holds the largest value: 12-bit scans are often stored in 16 bits and
    would be nearly black otherwise. PPM states its range.
    """
    with _opened(path) as (image, data):
        return _decode(image, data, least)[0]


def decode_image(data: bytes, name: str, least: int = 0, most: int = _MAX_PIXELS) -> Pixels:
    """Return the image in the bytes of a file, as `read_image` does, if it has at most `most` pixels."""
    with _opened(name, data, most) as (image, _):
        return _decode(image, data, least)[0]


def read_stored(path: str | Path) -> tuple[npt.NDArray[np.generic], str]:
    """Return the values of a file as stored, (H, W) or (H, W, channels), and Pillow's mode of the image.

    Palette and orientation are ignored: this is for masks, whose values are classes. Files with lossy compression,
    which changes values near edges, are refused.
    """
    with _opened(path) as (image, data):
        _check_lossless(image, data)
        image.load()
        return np.asarray(image), image.mode


def stored_mode(path: str | Path) -> str:
    """Return Pillow's mode of a mask, from its header. Lossy files are refused, as in `read_stored`."""
    with _opened(path) as (image, data):
        _check_lossless(image, data)
        return image.mode


def describe_image(path: str | File) -> Facts:
    """Return size and oddities of an image file. It is decoded, and an unreadable one raises a `UserError`.

    A large JPEG is decoded at an eighth of its size, which reads all of its data in half the time.
    """
    suffix = os.path.splitext(str(path))[1].lower()
    with _opened(path) as (image, data):
        kind, mode = "JPEG" if image.format == "MPO" else str(image.format), image.mode
        transparent = _is_transparent(image)
        _, orientation = _decode(image, data, least=1)
        width, height = _upright_size(image, orientation)
        found = {
            f"EXIF orientation {orientation}": orientation != 1,
            "CMYK": mode == "CMYK",
            "palette": mode in ("P", "PA"),
            "transparent": transparent,
            "1-bit": mode == "1",
            "16-bit": mode.startswith("I"),
            "several frames (only the first is used)": _has_frames(image),
            f"a {kind} file named {suffix}": suffix not in _SUFFIXES[kind],
        }
    return Facts(width, height, tuple(what for what, there in found.items() if there))


@contextmanager
def _opened(
    path: str | File, data: bytes | None = None, most: int = _MAX_PIXELS
) -> Iterator[tuple[ImageFile.ImageFile, bytes]]:
    """Yield the image with its header read, and the bytes of the file; any error inside becomes a `BadImageError`.

    Without `data`, the file is read.
    """
    data = _contents(path) if data is None else data
    heif = data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS
    if heif and not _can_read_heif():
        raise BadImageError(path, f"HEIC needs a package; {installing('heic')}, or convert it to JPEG")
    try:
        image = Image.open(io.BytesIO(data), formats=[_HEIF] if heif else [kind for kind in _SUFFIXES if kind != _HEIF])
        width, height = image.size
        if image.format == "WEBP":
            most = min(most, _MAX_PIXELS // 3)  # its decoder takes 16 bytes per pixel
        if width * height > most:
            raise ValueError(f"{width} x {height} pixels: more than {most:,}")
        if max(width, height) > _MAX_ASPECT * min(width, height):
            raise ValueError(f"{width} x {height} pixels: one side is more than {_MAX_ASPECT} times the other")
        yield image, data
    except UnidentifiedImageError:
        raise BadImageError(path, "not a JPEG, PNG, WebP, BMP, TIFF, GIF, PPM or HEIC image, or damaged") from None
    except Exception as error:  # damaged files make decoders raise nearly anything
        raise BadImageError(path, one_line(error)) from error


@cache
def _can_read_heif() -> bool:
    """Return whether pillow-heif is installed, after registering it with Pillow."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def size_of(path: str | File) -> tuple[int, int]:
    """Return width and height of the upright image, from the header of the file."""
    with _opened(path) as (image, _):
        return _upright_size(image, _orientation(image))


def _contents(path: str | File) -> bytes:
    """Return the bytes of a file. Faults of a disk or network drive often pass, so reading is tried four times."""
    for seconds in _PAUSES:
        try:
            return _read_once(path)
        except EnvironmentProblem:
            time.sleep(seconds)
    return _read_once(path)


def _read_once(path: str | File) -> bytes:
    try:
        if isinstance(path, Member):
            data = path.read_bytes()
        elif not stat.S_ISREG(os.stat(path).st_mode):
            raise BadImageError(path, "not a regular file")
        else:
            with open(path, "rb") as file:
                data = file.read()
    except PermissionError:
        raise BadImageError(path, "no permission to read the file") from None
    except OSError as error:
        if error.errno in _ABSENT:
            raise BadImageError(path, "the file does not exist") from None
        raise EnvironmentProblem(
            f"cannot read {str(path)!r}: {error.strerror}", "check the disk or network drive, then start again"
        ) from error
    if not data:
        raise BadImageError(path, "the file is empty")
    return data


def _decode(image: ImageFile.ImageFile, data: bytes, least: int = 0) -> tuple[Pixels, int]:
    """Return the upright pixels, and the EXIF orientation that they were stored in."""
    if image.format in ("JPEG", "MPO") and image.mode in ("RGB", "L"):
        orientation = _orientation(image)
        part = next((part for part in (8, 4, 2) if least and min(image.size) // part >= 2 * least), 1)
        pixels = _plain_jpeg(data, part)
        if pixels is not None and pixels.shape[1::-1] == tuple(-(-side // part) for side in image.size):
            return _upright(pixels, orientation), orientation
    stored = _orientation(image) if image.format == "TIFF" else None
    size = image.size
    image.load()
    if image.format == _HEIF and image.size != size:
        raise ValueError("its pixels do not have the size in its header")
    pixels = _in_rgb(image)
    if stored is not None:
        return pixels, stored  # Pillow already turns TIFF
    orientation = _orientation(image)  # in a PNG, it may come after the pixels
    return _upright(pixels, orientation), orientation


def _plain_jpeg(data: bytes, part: int) -> Pixels | None:
    """Decode with OpenCV, with the same result as Pillow in less than half the time; None leaves it to Pillow.

    The image is decoded at one `part`-th of its size.
    """
    if b"\xff\xd9" not in data[-4096:]:  # no end of image: some versions fill truncated files with gray
        return None
    reduced = {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8}
    how = reduced.get(part, cv2.IMREAD_COLOR_RGB)
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), how | cv2.IMREAD_IGNORE_ORIENTATION)
    if pixels is not None and part > 1:  # there is no reduced mode in RGB
        pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    return None if pixels is None else np.asarray(pixels, np.uint8)


def _check_lossless(image: ImageFile.ImageFile, data: bytes) -> None:
    if image.format in ("JPEG", "MPO") or (image.format == "WEBP" and _is_lossy_webp(data)):
        raise ValueError(f"lossy compression ({image.format}) changes the classes of pixels; save masks as PNG")


def _is_lossy_webp(data: bytes) -> bool:
    """Return whether the first image chunk of a WebP file is VP8, not VP8L."""
    at = 12
    while at + 8 <= len(data) and data[at : at + 4] not in (b"VP8 ", b"VP8L"):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + size + size % 2
    return data[at : at + 4] == b"VP8 "


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF in a good image: do not turn it
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _upright_size(image: Image.Image, orientation: int) -> tuple[int, int]:
    turned = orientation >= 5 and image.format not in ("TIFF", _HEIF)  # Pillow already turns these
    return (image.height, image.width) if turned else image.size


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _in_rgb(image: Image.Image) -> Pixels:
    """Convert the pixels to RGB, in strips: all at once would take three times the memory."""
    width, height = image.size
    rows = max(_STRIP // width, 1)
    strips = [(0, top, width, min(top + rows, height)) for top in range(0, height, rows)]
    largest = _largest_gray(image, strips)
    pixels = np.empty((height, width, 3), np.uint8)
    for box in strips:
        strip = image.crop(box)
        if largest:
            strip = Image.fromarray(np.rint(np.asarray(strip) * (255 / largest)).astype(np.uint8))
        pixels[box[1] : box[3]] = np.asarray(_flat(strip))
    return pixels


def _largest_gray(image: Image.Image, strips: list[tuple[int, int, int, int]]) -> int:
    """Return the value of white in grays of more than 8 bits, which Pillow would clip; 0 for other images."""
    if image.mode != "F" and not image.mode.startswith("I"):
        return 0
    ranges = [(values.min(), values.max()) for values in (np.asarray(image.crop(box)) for box in strips)]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    if image.mode == "F" or low < 0 or high > 65535:
        raise ValueError("its values have neither 8 nor 16 bits")
    return 65535 if image.format == "PPM" else next(top for top in (255, 4095, 65535) if high <= top)


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def _flat(image: Image.Image) -> Image.Image:
    """Return the image as RGB, over white where it is transparent."""
    if not _is_transparent(image):
        return image.convert("RGB")
    clear = image.convert("RGBA")
    canvas = Image.new("RGB", image.size, "white")
    canvas.paste(clear, mask=clear.getchannel("A"))
    return canvas


def _has_frames(image: ImageFile.ImageFile) -> bool:
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # damaged after the first frame
        return True
