"""Corrupted images: constants as published, images as defined, and nothing that depends on anything but its key."""

import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from helpers import forked
from helpers.images import drawing
from scipy import ndimage

from gpaco.data.corruption import distortions
from gpaco.data.corruption.corruptions import (
    CONSTANTS,
    CORRUPTIONS,
    KINDS,
    SEVERITIES,
    constants_for,
    corrupt,
    corruption_names,
)
from gpaco.data.corruption.images import corrupted
from gpaco.errors import UserError

Pixels = npt.NDArray[np.uint8]
RANDOM = set(CORRUPTIONS) - {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}


def photo(side: int = 32, seed: int = 0) -> Pixels:
    """A drawing with some texture."""
    noise = np.random.default_rng(seed).normal(0, 12, (side, side, 3))
    return np.clip(drawing(side, side, seed) + noise, 0, 255).astype(np.uint8)


def test_there_are_fifteen_corruptions_with_five_severities_in_both_tables() -> None:
    assert len(CORRUPTIONS) == 15
    for table in CONSTANTS.values():
        assert tuple(table) == CORRUPTIONS
        assert {len(values) for values in table.values()} == {5}


def test_an_image_of_any_size_is_corrupted_more_and_more() -> None:
    for name in CORRUPTIONS:
        for table in CONSTANTS:
            for height, width in ((32, 32), (33, 47), (96, 64)):
                image = np.ascontiguousarray(photo(96)[:height, :width])
                before = image.copy()
                found = [corrupt(image, name, severity, constants=table) for severity in SEVERITIES]
                assert all(done.shape == image.shape and done.dtype == np.uint8 for done in found)
                np.testing.assert_array_equal(image, before)
                change = [np.abs(done.astype(int) - image).mean() for done in found]
                assert max(change) > 0
                # Of these the kind of damage changes, or the part of the ice.
                if name not in ("glass_blur", "elastic_transform", "frost"):
                    assert change[4] > change[0], name


def test_flat_images_are_corrupted_without_a_warning() -> None:
    for name in CORRUPTIONS:
        for value in (0, 128, 255):
            for table in CONSTANTS:
                for severity in SEVERITIES:
                    corrupt(np.full((32, 32, 3), value, np.uint8), name, severity, constants=table, index=severity)


def test_an_image_depends_on_seed_severity_and_index_and_on_nothing_else() -> None:
    image = photo()
    for name in CORRUPTIONS:
        first = corrupt(image, name, 3, seed=5, index=7)
        for other in (corrupt(image, name, 3, seed=5, index=8), corrupt(image, name, 3, seed=6, index=7)):
            assert np.array_equal(other, first) == (name not in RANDOM), name
        np.random.seed(99)
        before = np.random.get_state()
        corrupt(image, "fog", 5)
        np.testing.assert_array_equal(corrupt(image, name, 3, seed=5, index=7), first)
        assert all(np.array_equal(a, b) for a, b in zip(before, np.random.get_state(), strict=True)), name


@pytest.mark.process
def test_another_process_makes_the_same_images() -> None:
    code = (
        "import hashlib, numpy as np; from gpaco.data.corruption.corruptions import *;"
        "image = (np.arange(32 * 32 * 3) * 37 % 256).astype(np.uint8).reshape(32, 32, 3);"
        "print(hashlib.sha256(b''.join(corrupt(image, n, s, seed=1, index=3).tobytes()"
        " for n in reversed(CORRUPTIONS) for s in SEVERITIES)).hexdigest())"
    )
    there = forked.output_of(code).strip()
    image = (np.arange(32 * 32 * 3) * 37 % 256).astype(np.uint8).reshape(32, 32, 3)
    made = {(n, s): corrupt(image, n, s, seed=1, index=3).tobytes() for n in CORRUPTIONS for s in SEVERITIES}
    here = hashlib.sha256(b"".join(made[n, s] for n in reversed(CORRUPTIONS) for s in SEVERITIES)).hexdigest()
    assert here == there


@pytest.mark.parametrize("side", [32, 224])
def test_what_is_not_random_is_what_the_library_makes(side: int) -> None:
    from imagecorruptions import corrupt as library

    image = photo(side)
    for name in ("defocus_blur", "contrast", "jpeg_compression", "pixelate", "brightness"):
        for severity in SEVERITIES:
            ours = corrupt(image, name, severity, constants="imagenet").astype(int)
            off = np.abs(ours - library(image, severity=severity, corruption_name=name))
            if name == "brightness":  # not by way of hue and back, which rounds
                assert off.max() <= 1
                assert off.mean() < 0.1
            else:
                assert off.max() == 0


def test_noise_has_the_spread_that_it_says() -> None:
    gray = np.full((224, 224, 3), 128, np.uint8)
    for table in CONSTANTS:
        sigma = CONSTANTS[table]["gaussian_noise"][0]
        noisy = corrupt(gray, "gaussian_noise", 1, constants=table) / 255
        assert noisy.std() == pytest.approx(sigma, rel=0.02)
        assert noisy.mean() == pytest.approx(128 / 255, abs=0.003)
        photons = CONSTANTS[table]["shot_noise"][0]
        shot = corrupt(gray, "shot_noise", 1, constants=table) / 255
        assert shot.std() == pytest.approx((128 / 255 / photons) ** 0.5, rel=0.02)
        hit = corrupt(gray, "impulse_noise", 3, constants=table)
        share = CONSTANTS[table]["impulse_noise"][2]
        assert (hit == 255).mean() == pytest.approx(share / 2, rel=0.1)
        assert (hit == 0).mean() == pytest.approx(share / 2, rel=0.1)


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_scatters_pixels_as_the_released_loop_does(reach: int) -> None:
    image = photo(40)[:36]
    down, across = np.random.default_rng(3).integers(-reach, reach, (2, 36 - 2 * reach, 40 - 2 * reach))
    looped = image.copy()
    for h in range(36 - reach, reach, -1):
        for w in range(40 - reach, reach, -1):
            near = h + down[h - reach - 1, w - reach - 1], w + across[h - reach - 1, w - reach - 1]
            looped[h, w], looped[near] = looped[near], looped[h, w]
    np.testing.assert_array_equal(distortions._scattered(image, reach, np.random.default_rng(3)), looped)


def test_motion_blur_is_half_a_gaussian_along_a_line_and_keeps_the_border() -> None:
    x = photo(12)[:10].astype(np.float32)
    radius, sigma, degrees = 20, 15.0, -33.0
    weights = np.exp(-(np.arange(41) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    angle = np.radians(degrees)
    expected = np.zeros_like(x)
    for y in range(10):
        for column in range(12):
            for i, weight in enumerate(weights):
                there = np.clip(y + int(np.ceil(i * np.sin(angle) - 0.5)), 0, 9)
                beside = np.clip(column + int(np.ceil(i * np.cos(angle) - 0.5)), 0, 11)
                expected[y, column] += weight * x[there, beside]
    np.testing.assert_allclose(distortions._moved(x, radius, sigma, degrees), expected, atol=1e-3)
    assert (corrupt(np.full((32, 32, 3), 200, np.uint8), "motion_blur", 5, constants="imagenet") == 200).all()


@pytest.mark.parametrize("factor", [1, 1.01, 1.1, 1.25, 1.75, 3, 4.5])
def test_zooming_shows_the_enlarged_middle(factor: float) -> None:
    x = (photo(48)[:40] / 255).astype(np.float32)
    parts = [int(np.ceil(side / factor)) for side in (40, 48)]
    (top, left) = ((side - part) // 2 for side, part in zip((40, 48), parts, strict=True))
    large = ndimage.zoom(x[top : top + parts[0], left : left + parts[1]], (factor, factor, 1), order=1)
    top, left = (large.shape[0] - 40) // 2, (large.shape[1] - 48) // 2
    np.testing.assert_allclose(distortions._zoomed(x, factor), large[top : top + 40, left : left + 48], atol=1e-6)


def test_clouds_are_made_by_diamonds_and_squares() -> None:
    class Recorded:
        """Draws, kept for the loops below."""

        def __init__(self) -> None:
            self.rng, self.kept = np.random.default_rng(4), []

        def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
            self.kept.append(self.rng.uniform(low, high, shape))
            return self.kept[-1]

    draw = Recorded()
    found = distortions._clouds(13, 1.7, draw)  # type: ignore[arg-type]
    n, land, bump, drawn = 16, np.zeros((16, 16)), 100.0, iter(draw.kept)
    step = n
    while step > 1:
        half = step // 2
        for offsets, around in (
            ((half, half), [(-half, -half), (-half, half), (half, -half), (half, half)]),
            ((0, half), [(-half, 0), (half, 0), (0, -half), (0, half)]),
            ((half, 0), [(-half, 0), (half, 0), (0, -half), (0, half)]),
        ):
            noise = next(drawn)
            for i in range(n // step):
                for j in range(n // step):
                    y, x = offsets[0] + i * step, offsets[1] + j * step
                    mean = sum(land[(y + a) % n, (x + b) % n] for a, b in around) / 4
                    land[y, x] = mean + bump * noise[i, j]
        step, bump = half, bump / 1.7
    np.testing.assert_allclose(found, (land - land.min()) / (land.max() - land.min()), atol=1e-12)


@pytest.mark.parametrize("table", ["imagenet", "cifar"])
def test_elastic_moves_pixels_by_smoothed_noise(table: str) -> None:
    image = photo(32)
    for severity in SEVERITIES:
        strength, sigma, shear, side = CONSTANTS[table]["elastic_transform"][severity - 1]
        strength, sigma = strength * 32 / side, sigma * 32 / side
        done = distortions.elastic_transform(image, (strength, sigma, 0.0, 32), np.random.default_rng(severity))
        draw = np.random.default_rng(severity)
        draw.uniform(size=(3, 2))  # of the affine map, which is none here
        moves = [
            strength * ndimage.gaussian_filter(draw.uniform(-1, 1, (32, 32)), sigma, mode="reflect", truncate=3)
            for _ in range(2)
        ]
        rows, columns = np.mgrid[0:32, 0:32].astype(float)
        places = [rows + moves[0], columns + moves[1]]
        expected = np.stack(
            [ndimage.map_coordinates(image[..., c] / 255, places, order=1, mode="reflect") for c in range(3)], 2
        )
        np.testing.assert_allclose(done, np.clip(expected, 0, 1) * 255, atol=1.01)  # cut off, not rounded
        assert shear > 0


def test_the_noise_of_elastic_is_smoothed_also_with_a_reach_beyond_the_image() -> None:
    noise = np.random.default_rng(0).uniform(-1, 1, (30, 47))
    for sigma in (0.0, 0.4, 3.0, 70.0):  # the last one reaches over the image several times
        expected = ndimage.gaussian_filter(noise, sigma, mode="reflect", truncate=3)
        np.testing.assert_allclose(distortions._spread(noise, sigma), expected, atol=1e-12)


@pytest.mark.parametrize("side", [5, 8, 12, 20, 28, 31])
def test_a_small_picture_comes_back_as_it_was_if_nothing_is_done_to_it(side: int) -> None:
    image = photo(40)[:side, : side + 3]
    seen: list[tuple[int, ...]] = []

    def look(image: Pixels) -> Pixels:
        seen.append(image.shape)
        return image

    np.testing.assert_array_equal(corrupted(image, look), image)
    assert min(seen[0][:2]) == 32
    done: Callable[[Pixels], Pixels] = lambda image: corrupt(image, "contrast", 5)  # noqa: E731
    assert corrupted(image, done).std() < image.std()


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match=r"no corruption 'wether'; did you mean 'weather'\?"):
        corruption_names("noise,wether")


def test_tables_go_by_the_size_of_a_picture() -> None:
    assert [constants_for(side) for side in (32, 64, 80, 96, 224)] == ["cifar"] * 3 + ["imagenet"] * 2
    assert corruption_names(None) == CORRUPTIONS
    assert corruption_names("digital, fog") == ("fog", *KINDS["digital"])
