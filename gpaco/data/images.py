"""One image file to RGB pixels: the right picture or a `UserError` that names the file, never anything else."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import cv2
import numpy as np
import numpy.typing as npt
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from gpaco.errors import EnvironmentProblem, UserError

Pixels = npt.NDArray[np.uint8]

MAX_PIXELS = 178_956_970  # where Pillow stops too: 512 MiB of RGB
MAX_ASPECT = 100
_MAX_BYTES = 512 << 20
WHITE = (255, 255, 255)

# The format is told by the first bytes, never by the suffix. Only these are opened: others have a history of holes.
_OPENERS: tuple[tuple[tuple[bytes, ...], Callable[..., ImageFile.ImageFile]], ...] = (
    ((b"\xff\xd8\xff",), JpegImagePlugin.jpeg_factory),
    ((b"\x89PNG\r\n\x1a\n",), PngImagePlugin.PngImageFile),
    ((b"RIFF",), WebPImagePlugin.WebPImageFile),
    ((b"BM",), BmpImagePlugin.BmpImageFile),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), TiffImagePlugin.TiffImageFile),
    ((b"GIF87a", b"GIF89a"), GifImagePlugin.GifImageFile),
    ((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"), PpmImagePlugin.PpmImageFile),
)
_KNOWN = "JPEG, PNG, WebP, BMP, TIFF, GIF or PPM"
_LOOKS_LIKE = (
    (b"<", "a web page or XML"),
    (b"version https://git-lfs", "a Git LFS pointer (git lfs pull fetches the image)"),
    (b"%PDF", "PDF"),
    (b"8BPS", "PSD"),
    (b"PK\x03\x04", "a zip archive"),
)
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
# Not the file's fault. A damaged one makes decoders ask the system for impossible things, which has other numbers.
_MACHINE_ERRORS = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN}


class BadImageError(UserError):
    """A file that is no image, with the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"cannot read image {str(path)!r}: {reason}",
            "repair or remove the file, or leave bad images out: on_bad_image = skip (--on-bad-image skip)",
        )
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type["BadImageError"], tuple[Path, str]]:
        return BadImageError, (self.path, self.reason)  # so that it gets out of a worker process


@dataclass(frozen=True)
class Facts:
    """What `describe_image` finds: sizes are of the upright picture, `odd` says what is unusual."""

    format: str
    mode: str
    width: int
    height: int
    odd: tuple[str, ...]


def read_image(
    path: str | os.PathLike[str],
    *,
    max_pixels: int = MAX_PIXELS,
    max_aspect: float = MAX_ASPECT,
    background: tuple[int, int, int] = WHITE,
) -> Pixels:
    """The picture in a file as (H, W, 3) uint8 RGB, upright by its EXIF orientation.

    Transparent parts show `background`. Of animated and multi-page files it is the first frame. Values deeper than
    8 bits are scaled, never clipped: 16-bit ones by the smallest of 8, 12 and 16 bits that holds the largest value of
    the image (12-bit scans are often stored in 16 bits and would be black otherwise; PPM states its range), floats
    from 0 to 1 by 255, floats from 0 to 255 not at all, anything else from its own smallest to its largest value.

    Args:
        path: a JPEG, PNG, WebP, BMP, TIFF, GIF or PPM file, whatever its suffix.
        max_pixels: more than that is an error before anything is decoded.
        max_aspect: so is a longer side of more than this many shorter sides.
        background: RGB behind transparent pixels.
    """
    with _opened(Path(path), max_pixels, max_aspect) as (image, file):
        pixels, _ = _decode(image, file, background)
    return pixels


def read_stored(path: str | os.PathLike[str]) -> tuple[npt.NDArray[np.generic], str]:
    """The values in a file as they are stored, (H, W) or (H, W, channels), and Pillow's word for their kind.

    Neither a palette nor an orientation is looked at: for masks, whose numbers are classes.
    """
    with _opened(Path(path), MAX_PIXELS, MAX_ASPECT) as (image, _):
        image.load()
        return np.asarray(image), image.mode


def describe_image(
    path: str | os.PathLike[str], *, max_pixels: int = MAX_PIXELS, max_aspect: float = MAX_ASPECT
) -> Facts:
    """Format, mode, size and oddities of an image file, which is decoded for it: a bad file is a `UserError`."""
    path = Path(path)
    with _opened(path, max_pixels, max_aspect) as (image, file):
        kind, mode = "JPEG" if image.format == "MPO" else str(image.format), image.mode
        deep = _stored_deep(image)
        transparent = "transparency" in image.info or mode in ("RGBA", "LA", "PA", "RGBa", "La")
        pixels, orientation = _decode(image, file, WHITE)
        found = {
            f"EXIF orientation {orientation}": orientation != 1,
            "CMYK": mode == "CMYK",
            "palette": mode in ("P", "PA"),
            "transparent": transparent,
            "1-bit": mode == "1",
            "16-bit": deep or mode.startswith("I;16"),
            "32-bit": mode == "I",
            "float": mode == "F",
            "several frames of which only the first is used": _has_frames(image),
            f"a {kind} file named {path.suffix.lower()}": path.suffix.lower() not in _SUFFIXES[kind],
        }
    height, width = pixels.shape[:2]
    return Facts(kind, mode, width, height, tuple(what for what, there in found.items() if there))


class _ReasonError(Exception):
    """Why a file is no image; becomes a `BadImageError` that names it."""


@contextmanager
def _opened(path: Path, max_pixels: int, max_aspect: float) -> Iterator[tuple[ImageFile.ImageFile, IO[bytes]]]:
    """The image with its header read and its size checked; whatever goes wrong with the file inside is a `UserError`.

    Pillow's `Image.open` is not used since its own limit is a global setting, and a warning before it is an error.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise _ReasonError("not a regular file")
        with open(path, "rb") as file:
            image = _identify(file)
            _check_size(image, max_pixels, max_aspect)
            yield image, file
    except UserError:
        raise
    except _ReasonError as bad:
        raise BadImageError(path, str(bad)) from None
    except (FileNotFoundError, NotADirectoryError):
        raise BadImageError(path, "the file does not exist") from None
    except PermissionError:
        raise BadImageError(path, "the file may not be read by this user") from None
    except OSError as error:
        if error.errno in _MACHINE_ERRORS:
            raise EnvironmentProblem(
                f"cannot read {str(path)!r}: {error.strerror}", "check the disk or network drive, then start again"
            ) from error
        raise BadImageError(path, _first_line(error)) from error
    except Exception as error:  # damaged files make decoders raise nearly anything
        raise BadImageError(path, _first_line(error)) from error


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def _identify(file: IO[bytes]) -> ImageFile.ImageFile:
    start = file.read(32)
    if not start:
        raise _ReasonError("the file is empty")
    for signatures, opener in _OPENERS:
        if start.startswith(signatures):
            file.seek(0)
            try:
                return opener(file, "")
            except (SyntaxError, IndexError, TypeError) as error:
                raise _ReasonError(f"damaged header: {_first_line(error)}") from error
    guess = next((f"; it looks like {what}" for sign, what in _LOOKS_LIKE if start.lstrip().startswith(sign)), "")
    raise _ReasonError(f"not a {_KNOWN} image{guess}")


def _check_size(image: ImageFile.ImageFile, max_pixels: int, max_aspect: float) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise _ReasonError(f"{width} x {height} pixels, more than the limit of {max_pixels}")
    if max(width, height) > max_aspect * min(width, height):
        raise _ReasonError(f"{width} x {height} pixels: one side is more than {max_aspect:g} times the other")


def _decode(image: ImageFile.ImageFile, file: IO[bytes], background: tuple[int, int, int]) -> tuple[Pixels, int]:
    """The upright pixels, and the EXIF orientation that they were stored in."""
    if image.format in ("JPEG", "MPO") and image.mode in ("RGB", "L"):
        orientation = _orientation(image)
        pixels = _plain_jpeg(file)
        if pixels is not None and pixels.shape[1::-1] == image.size:
            return _upright(pixels, orientation), orientation
    stored = _orientation(image) if image.format == "TIFF" else None
    deep = _stored_deep(image)
    image.load()
    picture = (_deep_colours(image, file) if deep else None) or _eight_bits(image)
    pixels = np.array(_flat(picture, background))
    if stored is not None:
        return pixels, stored  # Pillow turns TIFF by itself
    orientation = _orientation(image)  # of a PNG it may come after the pixels
    return _upright(pixels, orientation), orientation


def _plain_jpeg(file: IO[bytes]) -> Pixels | None:
    """The pixels by OpenCV: the same as Pillow's in less than half the time. None if Pillow should have a look."""
    data = _contents(file)
    if b"\xff\xd9" not in data[-4096:]:  # no end of image: some versions fill up truncated files in grey
        return None
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
    return None if pixels is None else np.asarray(pixels, np.uint8)


def _contents(file: IO[bytes]) -> bytes:
    """The whole file for OpenCV; nothing of one that is too large for that, which Pillow reads piece by piece."""
    if os.fstat(file.fileno()).st_size > _MAX_BYTES:
        return b""
    place = file.tell()
    file.seek(0)
    data = file.read()
    file.seek(place)
    return data


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF in a good picture: as stored
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


def _stored_deep(image: ImageFile.ImageFile) -> bool:
    """Colours of 16 bits, of which Pillow keeps the upper 8."""
    return image.format in ("PNG", "TIFF") and any(
        ";16" in str(tile.args) for tile in image.tile if image.mode in ("RGB", "RGBA", "LA")
    )


def _deep_colours(image: Image.Image, file: IO[bytes]) -> Image.Image | None:
    """All 16 bits by OpenCV, scaled; None unless its upper 8 bits are exactly what Pillow has."""
    data = _contents(file)
    found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
    if found is None or found.dtype != np.uint16 or found.ndim != 3:
        return None
    values = np.asarray(found, np.uint16)[..., [2, 1, 0, 3][: found.shape[2]]]
    seen = np.asarray(image if image.mode == "RGB" else image.convert("RGBA"))
    if seen.shape != values.shape or not np.array_equal(values >> 8, seen):
        return None
    return Image.fromarray(_scaled(values, 0, _top(int(values.max()))))


def _eight_bits(image: Image.Image) -> Image.Image:
    if not (image.mode in ("I", "F") or image.mode.startswith("I;")):
        return image
    values = np.asarray(image)
    if not np.isfinite(values).all():
        raise _ReasonError("it has values that are not finite")
    low, high = values.min().item(), values.max().item()
    if image.mode == "F":
        low, high = (0.0, 1.0) if 0 <= low <= high <= 1 else (0.0, 255.0) if 0 <= low <= high <= 255 else (low, high)
    elif 0 <= low <= high <= 65535:
        low, high = 0, 65535 if image.format == "PPM" else _top(high)
    return Image.fromarray(_scaled(values, low, high))


def _top(largest: int) -> int:
    return next(top for top in (255, 4095, 65535) if largest <= top)


def _scaled(values: npt.NDArray[np.generic], low: float, high: float) -> Pixels:
    scale = 255 / (high - low) if high > low else 0.0
    return np.asarray(np.rint((values.astype(np.float64) - low) * scale), np.uint8)


def _flat(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """RGB, transparent pixels over the background."""
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        clear = image.convert("RGBA")
        canvas = Image.new("RGB", image.size, background)
        canvas.paste(clear, mask=clear.getchannel("A"))
        return canvas
    return image.convert("RGB")


def _has_frames(image: ImageFile.ImageFile) -> bool:
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # damage behind the first frame
        return True
