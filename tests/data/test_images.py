"""`read_image`: odd files give the right image, bad ones a `UserError` that names them, and nothing is written."""

import copy
import os
import sys
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from helpers.images import drawing, files_of_all_kinds, zeros_png
from PIL import Image, ImageOps

from gpaco.data import images
from gpaco.data.images import BadImageError, describe_image, read_image, stored_mode
from gpaco.errors import UserError

Array = npt.NDArray[Any]


def saved(path: Path, image: Image.Image | Array, **options: Any) -> Path:
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(path, **options)
    return path


def refused(path: Path) -> str:
    """The reason, after checking that the error names the file and that cause and remedy are one line each."""
    with pytest.raises(UserError) as caught:
        read_image(path)
    assert repr(str(path)) in caught.value.cause
    assert "\n" not in caught.value.cause + caught.value.remedy
    assert isinstance(caught.value, BadImageError)
    return caught.value.reason


def test_a_lossless_rgb_file_of_any_format_gives_its_pixels(tmp_path: Path) -> None:
    image = drawing() // 85 * 85  # few colors, for GIF
    for suffix in ("png", "webp", "bmp", "tif", "ppm", "gif"):
        options = {"lossless": True} if suffix == "webp" else {}
        read = read_image(saved(tmp_path / f"a.{suffix}", image, **options))
        assert read.dtype == np.uint8
        assert read.flags.c_contiguous
        assert read.flags.writeable
        np.testing.assert_array_equal(read, image)


def test_a_plain_jpeg_gives_the_pixels_of_pillow(tmp_path: Path) -> None:
    for mode, options in product(("RGB", "L"), ({}, {"progressive": True}, {"subsampling": 0}, {"quality": 30})):
        path = saved(tmp_path / "a.jpg", Image.fromarray(drawing(61, 43)).convert(mode), **options)
        expected = np.asarray(Image.open(path).convert("RGB"), int)
        assert np.abs(read_image(path) - expected).max() <= 1


def test_a_large_jpeg_is_decoded_at_a_reduced_size_that_is_enough(tmp_path: Path) -> None:
    """Half, a quarter or an eighth, with twice the pixels that are asked for; turned upright; nearly the same image."""
    photo = Image.fromarray(drawing(1201, 801)).resize((1201, 801))
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.save(tmp_path / "a.jpg", quality=95, exif=exif)
    whole = read_image(tmp_path / "a.jpg")
    assert whole.shape == (1201, 801, 3)
    for least, part in ((0, 1), (500, 1), (201, 1), (200, 2), (100, 4), (50, 8), (10, 8)):
        found = read_image(tmp_path / "a.jpg", least)
        assert found.shape == (-(-1201 // part), -(-801 // part), 3), least
        small = np.asarray(Image.fromarray(whole).resize(found.shape[1::-1], Image.Resampling.BOX), int)
        assert np.abs(small - found).mean() < 6, least
    Image.fromarray(whole).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", 50).shape == whole.shape


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored = Image.fromarray(drawing())
        stored.info["exif"] = exif.tobytes()
        expected = np.asarray(ImageOps.exif_transpose(stored), int)
        jpeg = {"quality": 100, "subsampling": 0}
        for suffix, options in (("jpg", jpeg), ("png", {}), ("webp", {"lossless": True}), ("tif", {})):
            path = saved(tmp_path / f"a.{suffix}", drawing(), exif=exif, **options)
            read, facts = read_image(path), describe_image(path)
            assert read.shape == expected.shape
            assert np.abs(read - expected).mean() < 1.5
            assert (facts.height, facts.width) == read.shape[:2]
            assert facts.odd == (() if orientation == 1 else (f"EXIF orientation {orientation}",))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_leaves_the_picture_as_stored(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.jpg", drawing(), exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\xff")
    assert read_image(path).shape == (30, 40, 3)


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.jpg", Image.fromarray(drawing()).convert("CMYK"), quality=95)
    assert np.abs(read_image(path).astype(int) - drawing()).mean() < 3
    assert describe_image(path).odd == ("CMYK",)


def test_transparent_pixels_are_white(tmp_path: Path) -> None:
    opaque = np.full((8, 8, 4), 100, np.uint8)
    opaque[..., 3] = 255
    opaque[:4, :, 3] = 0
    palette = Image.fromarray(np.repeat([[1], [0]], 4, axis=0).astype(np.uint8).repeat(8, axis=1), "P")
    palette.putpalette([100, 100, 100, 7, 8, 9])
    for path in (
        saved(tmp_path / "rgba.png", opaque),
        saved(tmp_path / "la.png", Image.fromarray(opaque).convert("LA")),
        saved(tmp_path / "p.png", palette, transparency=1),
    ):
        read = read_image(path)
        assert (read[:4] == 255).all()
        assert (read[4:] == 100).all()
        assert "transparent" in describe_image(path).odd


def test_half_transparent_pixels_are_mixed_with_the_background(tmp_path: Path) -> None:
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[..., 3] = 128
    assert read_image(saved(tmp_path / "a.png", pixels))[0, 0, 0] == pytest.approx(127, abs=1)


def test_palette_one_bit_and_gray_become_rgb(tmp_path: Path) -> None:
    gray = drawing()[..., 0]
    np.testing.assert_array_equal(read_image(saved(tmp_path / "l.png", gray)), np.repeat(gray[..., None], 3, axis=2))
    bits = Image.fromarray(gray).convert("1")
    expected = np.asarray(bits.convert("RGB"))
    np.testing.assert_array_equal(read_image(saved(tmp_path / "1.png", bits)), expected)
    assert describe_image(tmp_path / "1.png").odd == ("1-bit",)
    palette = Image.fromarray(drawing()).quantize(16)
    np.testing.assert_array_equal(read_image(saved(tmp_path / "p.png", palette)), np.asarray(palette.convert("RGB")))
    assert describe_image(tmp_path / "p.png").odd == ("palette",)


def test_16_bit_grays_are_scaled_by_8_12_or_16_bits_and_never_clipped(tmp_path: Path) -> None:
    for suffix, top in product(("png", "tif"), (255, 4095, 65535)):
        ramp = np.linspace(0, top, 64 * 64).round().astype(np.uint16).reshape(64, 64)
        path = saved(tmp_path / f"a.{suffix}", ramp)
        np.testing.assert_array_equal(read_image(path), np.dstack([np.rint(ramp * (255 / top))] * 3))
        assert describe_image(path).odd == ("16-bit",)


def test_of_16_bit_colors_the_upper_8_bits_are_read(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 64 * 64).round().astype(np.uint16).reshape(64, 64)
    for suffix in ("png", "tif"):
        path = tmp_path / f"a.{suffix}"
        cv2.imwrite(str(path), np.dstack([ramp, ramp.T, ramp[::-1]]))  # OpenCV writes blue first
        np.testing.assert_array_equal(read_image(path), np.dstack([ramp[::-1], ramp.T, ramp]) >> 8)


def test_the_range_that_a_ppm_states_is_used(tmp_path: Path) -> None:
    for top in (1023, 4095, 65535):
        values = np.array([[0, top // 2, top]], ">u2")
        (tmp_path / "a.pgm").write_bytes(b"P5 3 1 %d\n" % top + values.tobytes())
        assert read_image(tmp_path / "a.pgm")[0, :, 0].tolist() == [0, pytest.approx(127, abs=1), 255]
    (tmp_path / "dark.pgm").write_bytes(b"P5 3 1 65535\n" + np.array([[0, 257, 514]], ">u2").tobytes())
    assert read_image(tmp_path / "dark.pgm")[0, :, 0].tolist() == [0, 1, 2]


def test_floats_and_wide_integers_are_refused(tmp_path: Path) -> None:
    for values in ([[0, 0.5, 1]], [[-1000, 0, 1000]], [[0, 1, 2 * 10**8]]):
        kind = np.float32 if 0.5 in values[0] else np.int32
        assert "neither 8 nor 16 bits" in refused(saved(tmp_path / "a.tif", np.array(values, kind)))


def test_of_several_frames_the_first_is_read(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((9, 9, 3), value, np.uint8)) for value in (50, 150, 250)]
    for suffix in ("gif", "webp", "tif", "png"):
        options = {"lossless": True} if suffix == "webp" else {}
        path = saved(tmp_path / f"a.{suffix}", frames[0], save_all=True, append_images=frames[1:], **options)
        assert (read_image(path) == 50).all()
        assert "several frames (only the first is used)" in describe_image(path).odd


def test_a_wrong_suffix_is_read_by_its_contents_and_described(tmp_path: Path) -> None:
    Image.fromarray(drawing()).save(tmp_path / "a.jpg", format="PNG")
    np.testing.assert_array_equal(read_image(tmp_path / "a.jpg"), drawing())
    facts = describe_image(tmp_path / "a.jpg")
    assert (facts.width, facts.height) == (40, 30)
    assert facts.odd == ("a PNG file named .jpg",)


def test_too_many_pixels_are_refused_before_decoding(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(zeros_png(60_000, 60_000, rows=1))
    assert refused(bomb) == "60000 x 60000 pixels: more than 134,217,728"
    large = tmp_path / "large.png"
    large.write_bytes(zeros_png(12_000, 8_000, rows=1))
    assert stored_mode(large)  # of 96 million pixels, where Pillow would warn


def test_an_extreme_aspect_ratio_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", np.zeros((1, 101, 3), np.uint8))
    assert "101 x 1 pixels: one side is more than 100 times the other" in refused(path)


def test_what_is_no_image_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "bad one: ü.jpg"
    for content, reason in (
        (b"", "the file is empty"),
        (b"<!DOCTYPE html><html>404</html>", "not a JPEG, PNG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", "not a JPEG, PNG"),  # Pillow would open it with another program
        (b"\x89PNG\r\n\x1a\n", ""),
        (b"\xff\xd8\xff\xe0", ""),
        (b"RIFF\x10\0\0\0WEBPVP8 ", ""),
        (b"II*\0\xff\xff\xff\xff", ""),
        (b"GIF89a", ""),
    ):
        path.write_bytes(content)
        assert reason in refused(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "absent.jpg") == "the file does not exist"
    assert refused(tmp_path) == "not a regular file"
    os.mkfifo(tmp_path / "pipe.jpg")
    assert refused(tmp_path / "pipe.jpg") == "not a regular file"
    (tmp_path / "link.jpg").symlink_to(tmp_path / "absent.jpg")
    assert refused(tmp_path / "link.jpg") == "the file does not exist"


def test_the_error_survives_the_way_out_of_a_worker_process(tmp_path: Path) -> None:
    with pytest.raises(BadImageError) as caught:
        read_image(tmp_path / "absent.jpg")
    again = copy.copy(caught.value)  # as a process does it: by __reduce__
    assert (str(again), again.remedy) == (str(caught.value), caught.value.remedy)


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    for name, whole in files_of_all_kinds().items():
        path = tmp_path / f"a.{name}"
        for share in (0.1, 0.3, 0.5, 0.7, 0.9) if name != "gif" else ():
            path.write_bytes(whole[: int(len(whole) * share)])
            assert refused(path)
        path.write_bytes(whole)
        assert read_image(path).shape == (30, 40, 3)


def test_heic_is_read_with_its_package_and_named_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heif = pytest.importorskip("pillow_heif")
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:, :32] = (250, 10, 20)
    path = tmp_path / "photo.heic"
    heif.from_pillow(Image.fromarray(pixels)).save(path, quality=95)
    images._can_read_heif.cache_clear()
    assert np.abs(read_image(path).astype(int) - pixels).mean() < 3
    assert images.describe_image(path).width == images.size_of(path)[0] == 64
    images._can_read_heif.cache_clear()
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(UserError, match=r"HEIC needs a package; .*pip install '\.\[heic\]'"):
        read_image(path)
    images._can_read_heif.cache_clear()
