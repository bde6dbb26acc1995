"""Training crops of segmentation: pure, aligned with their masks, of the size asked for."""

import sys
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from gpaco.data.counter_random import uniforms
from gpaco.recipes.settings import Segmentation
from gpaco.tasks.segmentation.transforms import DRAWS, TRIES, distorted, fitting, rescaled, training_crop

SIZES = Segmentation(crop=(48, 64), base_size=(60, 200))
PLAIN = replace(SIZES, colors=False)
FILL = (1, 2, 3)


def scene(seed: int = 0, size: tuple[int, int] = (70, 90)) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A image whose colors say the class: red is 40 times it."""
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 6, (size[0] // 25 + 1, size[1] // 25 + 1))
    mask = np.kron(blocks, np.ones((25, 25), int))[: size[0], : size[1]].astype(np.uint8)
    image = np.stack([mask * 40, 255 - mask * 40, np.full_like(mask, 128)], axis=2)
    return image, mask


def draws(index: int, epoch: int = 0) -> NDArray[np.float64]:
    return uniforms(3, epoch, np.array([index]), 0, DRAWS)[0]


def test_a_crop_is_a_function_of_the_draws_and_leaves_its_input_alone() -> None:
    image, mask = scene()
    kept = image.copy(), mask.copy()
    first, again, other = (training_crop(image, mask, draws(k), SIZES, FILL) for k in (1, 1, 2))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first[0], other[0])
    np.testing.assert_array_equal(image, kept[0])
    np.testing.assert_array_equal(mask, kept[1])


@pytest.mark.parametrize("size", [(70, 90), (300, 40), (9, 200), (1, 1)])
def test_every_crop_has_the_size_asked_for_and_is_filled_where_the_picture_ends(size: tuple[int, int]) -> None:
    image, mask = scene(size=size)
    for k in range(8):
        got, labels = training_crop(image, mask, draws(k), PLAIN, FILL)
        assert got.shape == (48, 64, 3)
        assert labels.shape == (48, 64)
        assert got.dtype == labels.dtype == np.uint8
        assert (got[labels == 255] == FILL).all()


def test_picture_and_mask_stay_aligned_through_scaling_cropping_and_mirroring() -> None:
    image, mask = scene()
    for k in range(20):
        got, labels = training_crop(image, mask, draws(k), PLAIN, FILL)
        inside = labels != 255
        # Away from edges between classes, where bilinear and nearest differ, the color says the class.
        flat = cv2.morphologyEx(labels, cv2.MORPH_GRADIENT, np.ones((7, 7), np.uint8)) == 0
        seen = inside & flat
        assert seen.mean() > 0.05
        np.testing.assert_array_equal(np.rint(got[seen][:, 0] / 40.0), labels[seen])


def test_a_crop_with_too_much_of_one_class_is_passed_over_while_there_are_tries() -> None:
    mask = np.zeros((60, 400), np.uint8)
    mask[:, 350:] = 1
    image = np.stack([mask] * 3, axis=2)
    settings = Segmentation(crop=(60, 60), base_size=(60, 400), scale=(1.0, 1.0), colors=False)
    shares = []
    for k in range(60):
        _, labels = training_crop(image, mask, draws(k), settings, FILL)
        shares.append(np.bincount(labels.ravel(), minlength=2).max() / labels.size)
    # One crop in ten has both classes in the right shares: ten tries find one two times of three.
    assert np.mean(np.array(shares) < 0.75) > 0.4


def test_an_all_ignored_mask_still_gives_a_crop() -> None:
    image, mask = scene()
    _, labels = training_crop(image, np.full_like(mask, 255), draws(0), SIZES, FILL)
    assert (labels == 255).all()


def test_scale_one_fits_the_base_size_both_ways() -> None:
    assert fitting((512, 2048), (512, 2048)) == 1
    assert fitting((2048, 512), (512, 2048)) == 1
    assert fitting((100, 100), (512, 2048)) == pytest.approx(5.12)


def test_a_mask_is_only_ever_resampled_by_whole_labels() -> None:
    image, mask = scene()
    for factor in (0.37, 1.9):
        resized, labels = rescaled(image, mask, factor)
        assert set(np.unique(labels)) <= set(np.unique(mask))
        assert resized.shape[:2] == labels.shape == (round(70 * factor), round(90 * factor))


def test_each_distortion_does_what_it_says_and_none_is_the_picture_itself() -> None:
    image, _ = scene()
    still = np.full(9, 0.99)
    np.testing.assert_array_equal(distorted(image, still), image)

    def with_draws(**at: float) -> NDArray[np.uint8]:
        u = still.copy()
        for key, value in at.items():
            u[int(key[1:])] = value
        return distorted(image, u)

    brighter = with_draws(u0=0.0, u1=1.0)
    np.testing.assert_array_equal(brighter, np.minimum(image.astype(int) + 32, 255))
    darker = with_draws(u0=0.0, u1=0.0)
    np.testing.assert_array_equal(darker, np.maximum(image.astype(int) - 32, 0))
    halved = with_draws(u3=0.0, u4=0.0)
    np.testing.assert_allclose(halved, image * 0.5, atol=0.51)
    gray = with_draws(u5=0.0, u6=0.0)  # half the saturation
    spread = image.max(2).astype(int) - image.min(2)
    np.testing.assert_allclose(gray.max(2).astype(int) - gray.min(2), spread / 2, atol=3)
    turned = with_draws(u7=0.0, u8=0.0)  # 36 degrees back
    before, after = (cv2.cvtColor(x, cv2.COLOR_RGB2HSV)[..., 0].astype(int) for x in (image, turned))
    assert np.median((after - before) % 180) in (161, 162, 163)


class Watched:
    """Uniform numbers that remember which function has read which of them."""

    def __init__(self, values: NDArray[np.float64], columns: range, read: dict[str, list[int]]) -> None:
        self.values, self.columns, self.read = values, columns, read

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Watched(self.values[place], self.columns[place], self.read)
        self.read.setdefault(sys._getframe(1).f_code.co_name, []).append(self.columns[place])
        return self.values[place]


def test_every_draw_decides_one_thing_and_none_is_left_over() -> None:
    image, _ = scene()
    one_class = np.zeros(image.shape[:2], np.uint8)  # so that all tries are looked at
    read: dict[str, list[int]] = {}
    u: Any = Watched(np.full(DRAWS, 0.4), range(DRAWS), read)  # below a half: everything happens
    training_crop(image, one_class, u, Segmentation(crop=(32, 32), base_size=(70, 90)), FILL)
    assert len(read["training_crop"]) == len(set(read["training_crop"])) == 2  # scale and mirror
    assert len(read["_place"]) == len(set(read["_place"])) == 2 * TRIES
    assert len(set(read["distorted"])) == 9  # each of which a test above has by itself
    assert sorted(column for columns in read.values() for column in set(columns)) == list(range(DRAWS))
