"""Damaged and exotic image files, and small files that claim to be huge images."""

import io
import os
import resource
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from helpers import forked
from helpers.images import drawing, files_of_all_kinds, png_chunk, tree_hash, zeros_png
from PIL import ExifTags, Image, ImageOps

from faults.promise import Promise, scratch
from faults.runs import PATIENCE, dice_of
from gpaco.data.images import read_image
from gpaco.errors import UserError

EACH = 500
SECONDS, BYTES = 5, 1 << 30


def attempt(number: int, home: Path) -> int:
    with scratch(home, number) as folder:
        (folder / "data").mkdir()
        forked.printed("-m", "faults.images", folder / "data", number, timeout=5 * PATIENCE)
    return EACH + 1


def mutate(folder: Path, number: int) -> None:
    """Write mutants of images of all kinds; each must be read or refused, and all files stay as they are."""
    dice, kinds = dice_of("images", number), exotic_files()
    for name, content in kinds.items():
        check_pixels(folder / f"whole.{name}", content)
    for k in range(EACH):
        name = dice.choice(list(kinds))
        data = bytearray(kinds[name])
        for _ in range(dice.randrange(1, 12)):
            data[dice.randrange(min(200, len(data)) if dice.random() < 0.5 else len(data))] = dice.randrange(256)
        if dice.random() < 0.2:
            del data[dice.randrange(1, len(data)) :]
        if dice.random() < 0.2:
            data += dice.randbytes(50)
        (folder / f"{k}.{name}").write_bytes(data)
    before = tree_hash(folder)
    for path in sorted(folder.iterdir()):
        limited(path, lambda path=path: right_or_refused(path))
    assert tree_hash(folder) == before, "a file was changed"


def exotic_files() -> dict[str, bytes]:
    """Images of all kinds, also with transparent parts, turned on their side, and from a phone."""
    image = Image.fromarray(drawing(40, 30))
    seen = image.copy()
    seen.putalpha(Image.linear_gradient("L").resize(seen.size))
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    files = files_of_all_kinds() | {"alpha.png": saved(seen, "PNG"), "turned.jpg": saved(image, "JPEG", exif=turned)}
    if find_spec("pillow_heif"):
        import pillow_heif

        pillow_heif.register_heif_opener()
        files["heic"] = saved(image, "HEIF")
    return files


def check_pixels(path: Path, content: bytes) -> None:
    """An image that nothing has damaged has the pixels that Pillow reads."""
    path.write_bytes(content)
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.mode == "I;16":
            upright = Image.fromarray((np.asarray(upright) // 257).astype(np.uint8))
        white = Image.new("RGBA", upright.size, "white")
        expected = np.asarray(Image.alpha_composite(white, upright.convert("RGBA")).convert("RGB"))
    found = read_image(path)
    assert found.shape == expected.shape, path.name
    assert np.abs(found.astype(int) - expected).max() <= ("alpha" in path.name), path.name  # rounded otherwise


def right_or_refused(path: Path) -> None:
    try:
        shape = read_image(path).shape
    except UserError as error:
        assert repr(str(path)) in error.cause, error  # noqa: PT017
        assert "\n" not in error.cause + error.remedy, error  # noqa: PT017
        return
    with Image.open(path) as image:
        assert sorted(shape[:2]) == sorted(image.size)
        assert shape[2:] == (3,)


def limited(what: object, action: Callable[[], Any]) -> None:
    """Check the time and the memory that an action takes."""
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    action()
    seconds, more = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert seconds < SECONDS, f"{what} took {seconds:.1f} s"
    assert more * 1024 < BYTES, f"{what} took {more / 1024:.0f} MB"


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


SIDE = 11_585  # of the largest square that is read
BOMBS: dict[str, Callable[[], bytes]] = {
    "claims.png": lambda: zeros_png(60_000, 60_000, 2, rows=1),
    "short.png": lambda: zeros_png(9_000, 9_000, 2, rows=1),
    "gray.png": lambda: zeros_png(SIDE, SIDE, 0),
    "color.png": lambda: zeros_png(SIDE, SIDE, 2),
    "alpha.png": lambda: zeros_png(SIDE, SIDE, 6),
    "huge.png": lambda: zeros_png(13_300, 13_300, 6),
    "text.png": lambda: zeros_png(8, 8, 2, extra=png_chunk(b"zTXt", b"comment\0\0" + zlib.compress(bytes(1 << 28)))),
    "gray.tif": lambda: saved(Image.new("L", (SIDE, SIDE)), "TIFF", compression="tiff_lzw"),
    "cmyk.tif": lambda: saved(Image.new("CMYK", (SIDE, SIDE)), "TIFF", compression="tiff_lzw"),
    "wide.tif": lambda: saved(Image.fromarray(np.zeros((SIDE, SIDE), np.uint16)), "TIFF", compression="tiff_lzw"),
    "palette.gif": lambda: saved(Image.new("P", (SIDE, SIDE)), "GIF"),
    "bits.png": lambda: saved(Image.new("1", (13_300, 13_300)), "PNG"),
    "photo.jpg": lambda: saved(Image.new("RGB", (SIDE, SIDE)), "JPEG"),
    "progressive.jpg": lambda: saved(Image.new("RGB", (SIDE, SIDE)), "JPEG", progressive=True),
    "cmyk.jpg": lambda: saved(Image.new("CMYK", (SIDE, SIDE)), "JPEG"),
    "large.webp": lambda: saved(Image.new("RGB", (6600, 6600)), "WEBP", method=0),
    "narrow.png": lambda: zeros_png(1, 1_000_000, 2),
}


def apart(action: Callable[[], None]) -> None:
    """Do something in a process of its own, whose memory is then known."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        finally:
            os._exit(code)
    assert os.waitpid(process, 0)[1] == 0


def main(folder: Path, number: int) -> None:
    warnings.simplefilter("ignore")  # decoders warn about damage that they can live with
    apart(lambda: mutate(folder, number))
    name = list(BOMBS)[number % len(BOMBS)]
    bomb = folder / name
    apart(lambda: print(bomb.write_bytes(BOMBS[name]())))
    apart(lambda: limited(name, lambda: right_or_refused(bomb)))


PROMISE = Promise(
    "Damaged and exotic images, and bombs: the right image or an error that names the file, in less than 1 GB and 5 s "
    "of computing, and no file is changed",
    attempt,
    attempts=2,
    goal=50_000,
)

if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
