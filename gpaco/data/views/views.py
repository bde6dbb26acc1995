"""Views: the random augmentations that a network is trained on, by name.

    sim             crop, color jitter, gray, blur                          (photographs: "sim" of the released code)
    sim_warp        crop, color jitter, gray, warp, blur                     (SimAugment of Khosla et al., with "sim")
    rand            crop, color jitter, RandAugment                         ("randcls")
    rand_stack      crop, color jitter, gray, blur, RandAugment             ("randclsstack")
    rand_blur       crop, color jitter, RandAugment, blur                    (the same in the paper's text)
    mae             bicubic crop, RandAugment whose levels all grow          (MAE's fine-tuning: "rand-m9-mstd0.5-inc1")
    cifar_regular   shift, AutoAugment, Cutout                               ("regular")
    cifar_sim       crop, color jitter with hue, gray, blur                 ("sim_cifar")
    cifar_aug       the same with less blur                                  ("aug_cifar")
    plain           crop (photographs) or shift (images in memory)

All mirror half of the images. Order and constants are those of the released code, except that mirroring always comes
right after the crop; in the one released view where it comes last (sim), no step in between depends on left or right.

A view is a pure function of the image and a row of uniform numbers (counter_random.py), so it is the same in any batch
and for any number of workers. Every random decision has its own column, the same for all views.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpaco.data.views import photo_ops
from gpaco.data.views.policies import (
    DRAWS_OF_AUTO_AUGMENT,
    DRAWS_OF_CROP,
    DRAWS_PER_RAND_STEP,
    Box,
    Step,
    auto_augment,
    color_jitter,
    crop_box,
    rand_augment,
)
from gpaco.data.views.spline import DRAWS_OF_WARP, drawn_moves
from gpaco.data.views.tested import TestView, sized

Array = npt.NDArray[Any]

# Columns of uniform numbers. A shift uses the last two of the crop, its position.
_PLACE = slice(DRAWS_OF_CROP - 2, DRAWS_OF_CROP)
_FLIP = DRAWS_OF_CROP
_JITTERED = _FLIP + 1
_ORDER = slice(_JITTERED + 1, _JITTERED + 5)
_FACTORS = slice(_JITTERED + 5, _JITTERED + 9)
_GRAYED = _JITTERED + 9
_BLURRED = _GRAYED + 1
_SIGMA = _BLURRED + 1
_HOLE = slice(_SIGMA + 1, _SIGMA + 3)
_POLICY = _SIGMA + 3

_TINY = 12  # pixels; the built-in digits are smaller, and a mirrored digit is not a digit


@dataclass(frozen=True)
class View:
    """A view by name, and its settings, as checked by a recipe."""

    name: str
    size: int  # side of the result, in pixels
    crop_scale: tuple[float, float] | None = None  # least and largest share of the area in a crop; None: the view's own
    ops: int = 2  # n of RandAugment
    magnitude: float = 10  # m of RandAugment
    flip: bool = True  # mirror half of the images, except those of at most 12 pixels

    @property
    def least(self) -> int:
        """The pixels that the smallest crop needs of the shorter side of an image."""
        scale = self.crop_scale or VIEWS[self.name].scale
        return math.ceil(self.size / math.sqrt(scale[0])) if scale else self.size

    @property
    def draws(self) -> int:
        """The number of uniform numbers that the view needs for one image."""
        return _POLICY + max(DRAWS_OF_AUTO_AUGMENT, DRAWS_PER_RAND_STEP * self.ops, DRAWS_OF_WARP)


@dataclass(frozen=True)
class _Kind:
    scale: tuple[float, float] | None  # of the crop; None: shifted by up to an eighth of the side
    steps: Callable[[View, Sequence[float]], list[Step]]
    hole: bool = False
    resample: str = "bilinear"


def photo_view(image: Array, view: View, u: Array, *, in_memory: bool = False) -> Array:
    """Return the view (size, size, 3) uint8 of an image (H, W, 3) uint8. u: at least (view.draws,) uniform numbers.

    in_memory: it is one of many small images of the same size: it is resized without cropping, and `plain` shifts it
    unless it is enlarged, since pretrained networks do not know black borders.
    """
    draws = u.tolist()
    kind, size = VIEWS[view.name], view.size
    height, width = image.shape[:2]
    shifts = in_memory and view.name == "plain" and size <= max(height, width)
    scale = view.crop_scale or (None if shifts else kind.scale)
    if scale:
        out = photo_ops.resized_crop(image, crop_box(height, width, scale, draws), size, size, kind.resample)
    else:
        pad = max(1, size // 8)
        top, left = (int(draw * (2 * pad + 1)) for draw in draws[_PLACE])
        padded = np.zeros((size + 2 * pad, size + 2 * pad, 3), np.uint8)
        whole = TestView(size, size, whole=in_memory, interpolation="bilinear")
        padded[pad:-pad, pad:-pad] = sized(image, whole, resized_whole)
        out = padded[top : top + size, left : left + size]
    if view.flip and min(height, width) > _TINY and draws[_FLIP] < 0.5:
        out = cv2.flip(out, 1)
    for step in kind.steps(view, draws):
        out = photo_ops.apply(out, step)
    if kind.hole:
        row, column = (int(draw * size) for draw in draws[_HOLE])
        out = photo_ops.cutout(out, row, column, size // 2)
    return np.ascontiguousarray(out)


def batch_view(images: Array, view: View, u: Array) -> Tensor:
    """Return the views (B, 3, size, size) uint8 of images (B, H, W, 3) uint8 in memory. u: at least (B, view.draws)."""
    out = np.empty((len(images), view.size, view.size, 3), np.uint8)
    for target, image, row in zip(out, images, u, strict=True):
        target[:] = photo_view(image, view, row, in_memory=True)
    return channels_first(out)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return (images / 255 - mean) / std as float32. images: (B, 3, H, W) uint8; mean, std: one number per channel."""
    # Constants as a whole image in the same memory layout: with channels last, broadcasting three numbers is slow.
    shift, scale = (torch.empty_like(images[:1], dtype=torch.float32) for _ in range(2))
    shift.copy_(255 * torch.tensor(mean).view(-1, 1, 1))
    scale.copy_(1 / (255 * torch.tensor(std).view(-1, 1, 1)))
    return images.float().sub_(shift).mul_(scale)


def _sim(view: View, draws: Sequence[float]) -> list[Step]:
    return color_jitter(draws[_ORDER], draws[_FACTORS], hue=0) + _gray(draws) + _blur(draws, 0.5)


def _sim_warp(view: View, draws: Sequence[float]) -> list[Step]:
    moves = drawn_moves(draws[_POLICY:])
    warped = [Step("warp", moves=moves)] if moves else []
    return color_jitter(draws[_ORDER], draws[_FACTORS], hue=0) + _gray(draws) + warped + _blur(draws, 0.5)


def _rand(view: View, draws: Sequence[float]) -> list[Step]:
    return color_jitter(draws[_ORDER], draws[_FACTORS], hue=0) + _rand_augment(view, draws)


def _cifar(draws: Sequence[float], blurred: float) -> list[Step]:
    jitter = color_jitter(draws[_ORDER], draws[_FACTORS], hue=0.1) if draws[_JITTERED] < 0.8 else []
    return jitter + _gray(draws) + _blur(draws, blurred)


def _rand_augment(view: View, draws: Sequence[float], increasing: bool = False) -> list[Step]:
    return rand_augment(draws[_POLICY:], view.ops, view.magnitude, increasing)


def _gray(draws: Sequence[float]) -> list[Step]:
    return [Step("color", 0.0)] if draws[_GRAYED] < 0.2 else []


def _blur(draws: Sequence[float], blurred: float) -> list[Step]:
    return [Step("blur", 0.1 + 1.9 * draws[_SIGMA])] if draws[_BLURRED] < blurred else []


VIEWS = {
    "sim": _Kind((0.08, 1.0), _sim),
    "sim_warp": _Kind((0.08, 1.0), _sim_warp),
    "rand": _Kind((0.08, 1.0), _rand),
    "rand_stack": _Kind((0.08, 1.0), lambda view, draws: _sim(view, draws) + _rand_augment(view, draws)),
    "rand_blur": _Kind((0.08, 1.0), lambda view, draws: _rand(view, draws) + _blur(draws, 0.5)),
    "mae": _Kind((0.08, 1.0), lambda view, draws: _rand_augment(view, draws, increasing=True), resample="bicubic"),
    "cifar_regular": _Kind(None, lambda view, draws: auto_augment(draws[_POLICY:]), hole=True),
    "cifar_sim": _Kind((0.2, 1.0), lambda view, draws: _cifar(draws, 0.5)),
    "cifar_aug": _Kind((0.2, 1.0), lambda view, draws: _cifar(draws, 0.2)),
    "plain": _Kind((0.25, 1.0), lambda view, draws: []),
}


def resized_whole(image: Array, height: int, width: int, resample: str) -> Array:
    return photo_ops.resized_crop(image, Box(0, 0, *image.shape[:2]), height, width, resample)


def channels_first(images: Array) -> Tensor:
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
