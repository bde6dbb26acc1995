"""From one image file to RGB pixels: the image, or a `UserError` that names the file."""

import errno
import io
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, UnidentifiedImageError

from gpaco.errors import EnvironmentProblem, UserError

Pixels = npt.NDArray[np.uint8]

_MAX_ASPECT = 100
_MAX_PIXELS = 2**29 // 3  # half a gigabyte as RGB
Image.MAX_IMAGE_PIXELS = None  # Pillow would warn at half of that; `_opened` checks the size of every image
_PAUSES = (0.1, 0.5, 2.0)  # seconds before a file is read again
# Only these formats are opened, recognized by their contents and not by the suffix.
_SUFFIXES = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "BMP": (".bmp", ".dib"),
    "TIFF": (".tif", ".tiff"),
    "GIF": (".gif",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
SUFFIXES = frozenset(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)
_ORIENTATION = 0x0112
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}


class BadImageError(UserError):
    """A file that is no image, with the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"cannot read image {str(path)!r}: {reason}",
            "repair or remove the file, or leave unreadable images out: on_bad_image = skip (--on-bad-image skip)",
        )
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type["BadImageError"], tuple[Path, str]]:
        return BadImageError, (self.path, self.reason)  # so that it gets out of a worker process


@dataclass(frozen=True)
class Facts:
    """What `describe_image` finds: the size of the upright image, and in `odd` what is unusual."""

    width: int
    height: int
    odd: tuple[str, ...]


def read_image(path: str | os.PathLike[str], least: int = 0) -> Pixels:
    """Return the image in a JPEG, PNG, WebP, BMP, TIFF, GIF or PPM file as (H, W, 3) uint8 RGB, turned upright.

    If `least` pixels of the shorter side are enough, a large JPEG is decoded at half, a quarter or an eighth of its
    size, which is faster. At least twice as many pixels stay, so that resizing still smooths them.

    Transparent parts become white. Animated and multi-page files give their first frame. 16-bit grays are scaled by the
    smallest of 8, 12 and 16 bits that holds the largest value: 12-bit scans are often stored in 16 bits and would be
    black otherwise. PPM states its range.
    """
    with _opened(Path(path)) as (image, data):
        return _decode(image, data, least)[0]


def read_stored(path: str | os.PathLike[str]) -> tuple[npt.NDArray[np.generic], str]:
    """Return the values of a file as stored, (H, W) or (H, W, channels), and Pillow's mode of the image.

    Palette and orientation are ignored: this is for masks, whose numbers are classes.
    """
    with _opened(Path(path)) as (image, _):
        image.load()
        return np.asarray(image), image.mode


def stored_mode(path: str | os.PathLike[str]) -> str:
    """Return Pillow's mode of an image, from its header."""
    with _opened(Path(path)) as (image, _):
        return image.mode


def describe_image(path: str | os.PathLike[str]) -> Facts:
    """Return size and oddities of an image file. It is decoded: an unreadable one is a `UserError`."""
    path = Path(path)
    with _opened(path) as (image, data):
        kind, mode = "JPEG" if image.format == "MPO" else str(image.format), image.mode
        transparent = _is_transparent(image)
        pixels, orientation = _decode(image, data)
        found = {
            f"EXIF orientation {orientation}": orientation != 1,
            "CMYK": mode == "CMYK",
            "palette": mode in ("P", "PA"),
            "transparent": transparent,
            "1-bit": mode == "1",
            "16-bit": mode.startswith("I"),
            "several frames of which only the first is used": _has_frames(image),
            f"a {kind} file named {path.suffix.lower()}": path.suffix.lower() not in _SUFFIXES[kind],
        }
    height, width = pixels.shape[:2]
    return Facts(width, height, tuple(what for what, there in found.items() if there))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[ImageFile.ImageFile, bytes]]:
    """Yield the image with its header read, and the bytes of the file; any error inside becomes a `BadImageError`."""
    data = _contents(path)
    try:
        image = Image.open(io.BytesIO(data), formats=tuple(_SUFFIXES))
        width, height = image.size
        if width * height > _MAX_PIXELS:
            raise ValueError(f"{width} x {height} pixels: more than {_MAX_PIXELS:,}")
        if max(width, height) > _MAX_ASPECT * min(width, height):
            raise ValueError(f"{width} x {height} pixels: one side is more than {_MAX_ASPECT} times the other")
        yield image, data
    except UnidentifiedImageError:
        raise BadImageError(path, "not a JPEG, PNG, WebP, BMP, TIFF, GIF or PPM image, or damaged") from None
    except Exception as error:  # damaged files make decoders raise nearly anything
        raise BadImageError(path, (str(error).strip().splitlines() or [type(error).__name__])[0]) from error


def _contents(path: Path) -> bytes:
    """Return the bytes of a file. Faults of a disk or network drive often pass: reading is tried four times."""
    for seconds in _PAUSES:
        try:
            return _read_once(path)
        except EnvironmentProblem:
            time.sleep(seconds)
    return _read_once(path)


def _read_once(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise BadImageError(path, "not a regular file")
        data = path.read_bytes()
    except PermissionError:
        raise BadImageError(path, "the file may not be read by this user") from None
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
    image.load()
    pixels = np.array(_flat(_eight_bits(image)))
    if stored is not None:
        return pixels, stored  # Pillow turns TIFF by itself
    orientation = _orientation(image)  # of a PNG it may come after the pixels
    return _upright(pixels, orientation), orientation


def _plain_jpeg(data: bytes, part: int) -> Pixels | None:
    """Return the pixels by OpenCV, the same as Pillow's in less than half the time; None to leave it to Pillow.

    The image is decoded at one `part`-th of its size.
    """
    if b"\xff\xd9" not in data[-4096:]:  # no end of image: some versions fill up truncated files in gray
        return None
    reduced = {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8}
    how = reduced.get(part, cv2.IMREAD_COLOR_RGB)
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), how | cv2.IMREAD_IGNORE_ORIENTATION)
    if pixels is not None and part > 1:  # there is no reduced mode in RGB
        pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    return None if pixels is None else np.asarray(pixels, np.uint8)


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF in a good image: as stored
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return grays of more than 8 bits scaled to 8, since Pillow would clip them; other images as they are."""
    if image.mode != "F" and not image.mode.startswith("I"):
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise ValueError("its values are neither of 8 nor of 16 bits")
    top = 65535 if image.format == "PPM" else next(top for top in (255, 4095, 65535) if values.max() <= top)
    return Image.fromarray(np.rint(values * (255 / top)).astype(np.uint8))


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
    except Exception:  # damage behind the first frame
        return True
