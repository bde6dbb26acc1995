"""Views: the random versions of an image that a network is trained on, by name, and the fixed one it is tested on.

    sim             crop, colour jitter, grey, blur                          (photographs: "sim" of the released code)
    rand            crop, colour jitter, RandAugment                         ("randcls")
    rand_stack      crop, colour jitter, grey, blur, RandAugment             ("randclsstack")
    mae             bicubic crop, RandAugment whose levels all grow          (MAE's fine-tuning: "rand-m9-mstd0.5-inc1")
    cifar_regular   shift, AutoAugment, Cutout                               ("regular")
    cifar_sim       crop, colour jitter with hue, grey, blur                 ("sim_cifar")
    cifar_aug       the same with less blur                                  ("aug_cifar")
    plain           crop (photographs) or shift (images in memory)

All mirror half of the images. Order and constants are those of the released code, except that mirroring always comes
right after the crop; the one released view in which it comes last (sim) has no step between that tells left from right.

A view is a pure function of the image and of a row of uniform numbers (random.py), so it is the same in any batch and
for any number of workers. Every decision has its own column, whatever the view.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpaco.data import batch_ops, photo_ops
from gpaco.data.policies import (
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
from gpaco.errors import UserError, nearest

Array = npt.NDArray[Any]

# Columns of uniform numbers. A shift uses the last two of the crop, its place.
_PLACE = slice(DRAWS_OF_CROP - 2, DRAWS_OF_CROP)
_FLIP = DRAWS_OF_CROP
_JITTERED = _FLIP + 1
_ORDER = slice(_JITTERED + 1, _JITTERED + 5)
_FACTORS = slice(_JITTERED + 5, _JITTERED + 9)
_GREYED = _JITTERED + 9
_BLURRED = _GREYED + 1
_SIGMA = _BLURRED + 1
_HOLE = slice(_SIGMA + 1, _SIGMA + 3)
_POLICY = _SIGMA + 3

_TINY = 12  # pixels; the built-in digits are smaller, and a mirrored digit is not a digit


@dataclass(frozen=True)
class View:
    """A view by name, and its settings.

    size: side of the result, in pixels
    crop_scale: the least and the largest share of the area that a crop shows; None is the view's own
    ops, magnitude: n and m of RandAugment
    flip: whether half of the images are mirrored; images of at most 12 pixels never are
    """

    name: str
    size: int
    crop_scale: tuple[float, float] | None = None
    ops: int = 2
    magnitude: float = 10
    flip: bool = True

    def __post_init__(self) -> None:
        if self.name not in VIEWS:
            raise UserError(
                f"there is no view {self.name!r}{nearest(self.name, VIEWS)}", f"choose one of {', '.join(VIEWS)}"
            )
        if self.size < 1:
            raise UserError(f"a view needs a size of at least 1 pixel, got {self.size}", "set the size of the images")
        if self.ops < 0 or self.magnitude < 0:
            raise UserError(
                f"RandAugment cannot do {self.ops} operations at magnitude {self.magnitude}",
                "ops is a number of operations, 0 or more, and magnitude is 0 to 10",
            )
        if self.crop_scale and not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            raise UserError(
                f"crops cannot show {self.crop_scale[0]} to {self.crop_scale[1]} of an image",
                "crop_scale is the least and the largest share of the area, such as [0.2, 1]",
            )

    @property
    def draws(self) -> int:
        """How many uniform numbers the view needs for one image."""
        return _POLICY + max(DRAWS_OF_AUTO_AUGMENT, DRAWS_PER_RAND_STEP * self.ops)


@dataclass(frozen=True)
class _Kind:
    scale: tuple[float, float] | None  # of the crop; None: shifted by up to an eighth of the side
    steps: Callable[[View, Sequence[float]], list[Step]]
    hole: bool = False
    resample: str = "bilinear"


def photo_view(image: Array, view: View, u: Array) -> Array:
    """The view (size, size, 3) uint8 of one image (H, W, 3) uint8. u: (view.draws,) uniform numbers, or more."""
    draws = _checked(u, view, 1).tolist()
    kind, size = VIEWS[view.name], view.size
    height, width = image.shape[:2]
    scale = view.crop_scale or kind.scale
    if scale:
        out = photo_ops.resized_crop(image, crop_box(height, width, scale, draws), size, size, kind.resample)
    else:
        whole, pad = eval_photo(image, size, size), _pad(size)
        top, left = (int(draw * (2 * pad + 1)) for draw in draws[_PLACE])
        out = np.pad(whole, ((pad, pad), (pad, pad), (0, 0)))[top : top + size, left : left + size]
    if _may_flip(view, height, width) and draws[_FLIP] < 0.5:
        out = photo_ops.mirrored(out)
    for step in kind.steps(view, draws):
        out = photo_ops.apply(out, step)
    if kind.hole:
        row, column = (int(draw * size) for draw in draws[_HOLE])
        out = photo_ops.cutout(out, row, column, size // 2)
    return np.ascontiguousarray(out)


def batch_view(images: Array, view: View, u: Array) -> Tensor:
    """The views (B, 3, size, size) uint8 of images (B, H, W, 3) uint8 in memory. u: (B, view.draws), or more."""
    u = _checked(u, view, 2)
    if len(u) != len(images):
        raise ValueError(f"every image needs a row of uniform numbers, got {len(u)} rows for {len(images)} images")
    kind, size = VIEWS[view.name], view.size
    height, width = images.shape[1:3]
    scale = view.crop_scale or (kind.scale if view.name != "plain" else None)
    rows = u.tolist()
    if scale:
        boxes = [crop_box(height, width, scale, draws) for draws in rows]
        out = batch_ops.resized_crops(_channels_first(images), boxes, size, size, kind.resample)
    else:
        if (height, width) != (size, size):
            images = eval_batch(images, size).permute(0, 2, 3, 1).numpy()
        pad = _pad(size)
        tops, lefts = (u[:, _PLACE] * (2 * pad + 1)).astype(np.int64).T
        out = batch_ops.shifted(images, tops, lefts, pad)
    if _may_flip(view, height, width):
        out = batch_ops.mirrored(out, torch.from_numpy(u[:, _FLIP] < 0.5))
    out = batch_ops.apply(out, [kind.steps(view, draws) for draws in rows])
    if kind.hole:
        centres = torch.from_numpy((u[:, _HOLE] * size).astype(np.int64))
        out = batch_ops.cutout(out, centres[:, 0], centres[:, 1], size // 2)
    return out.contiguous()


def eval_photo(image: Array, size: int, resize: int, resample: str = "bilinear") -> Array:
    """The image with its shorter side resized to `resize`, and of that the central (size, size, 3)."""
    if resize < size:
        raise ValueError(f"a crop of {size} pixels does not fit an image resized to {resize}; resize to {size} or more")
    height, width = image.shape[:2]
    short = min(height, width)
    # torchvision rounds the longer side down
    tall, wide = (resize if side == short else int(resize * side / short) for side in (height, width))
    out = photo_ops.resized_crop(image, Box(0, 0, height, width), tall, wide, resample)
    top, left = round((tall - size) / 2), round((wide - size) / 2)
    return np.ascontiguousarray(out[top : top + size, left : left + size])


def eval_batch(images: Array, size: int, resample: str = "bilinear") -> Tensor:
    """The images (B, H, W, 3) as (B, 3, size, size) uint8, resized if need be."""
    batch, height, width, _ = images.shape
    out = _channels_first(images)
    if (height, width) == (size, size):
        return out
    return batch_ops.resized_crops(out, [Box(0, 0, height, width)] * batch, size, size, resample)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(images / 255 - mean) / std as float32. images: (B, 3, H, W) uint8; mean, std: one number per channel."""
    shift = 255 * torch.tensor(mean, device=images.device).view(-1, 1)
    scale = 1 / (255 * torch.tensor(std, device=images.device).view(-1, 1))
    if images.is_contiguous():
        flat = images.flatten(2)  # (B, 3, H W)
    else:  # pixel by pixel: a row of pixels at a time is three times faster than a pixel at a time
        flat = images.permute(0, 2, 3, 1).flatten(2)  # (B, H, W 3)
        shift, scale = shift.repeat(images.shape[3], 1).view(-1), scale.repeat(images.shape[3], 1).view(-1)
    out = _room(flat)
    cpu = images.device.type == "cpu"
    few = max(1, 2**18 // max(1, images[:1].numel())) if cpu else max(1, len(images))  # that stay in a cache
    for part, target in zip(flat.split(few), out.split(few), strict=True):
        target.copy_(part).sub_(shift).mul_(scale)
    return out.view(images.shape) if images.is_contiguous() else out.view(-1, *images.shape[2:], 3).permute(0, 3, 1, 2)


def _room(like: Tensor) -> Tensor:
    if like.device.type != "cpu":
        return torch.empty_like(like, dtype=torch.float32)
    return torch.from_numpy(np.empty(like.shape, np.float32))  # in huge pages, which torch does not ask for: faster


def _nothing(view: View, draws: Sequence[float]) -> list[Step]:
    return []


def _sim(view: View, draws: Sequence[float]) -> list[Step]:
    return [*color_jitter(draws[_ORDER], draws[_FACTORS], hue=0), *_grey(draws), *_blur(draws, 0.5)]


def _rand(view: View, draws: Sequence[float]) -> list[Step]:
    return color_jitter(draws[_ORDER], draws[_FACTORS], hue=0) + rand_augment(draws[_POLICY:], view.ops, view.magnitude)


def _rand_stack(view: View, draws: Sequence[float]) -> list[Step]:
    return _sim(view, draws) + rand_augment(draws[_POLICY:], view.ops, view.magnitude)


def _mae(view: View, draws: Sequence[float]) -> list[Step]:
    return rand_augment(draws[_POLICY:], view.ops, view.magnitude, increasing=True)


def _cifar(blurred: float) -> Callable[[View, Sequence[float]], list[Step]]:
    def steps(view: View, draws: Sequence[float]) -> list[Step]:
        jitter = color_jitter(draws[_ORDER], draws[_FACTORS], hue=0.1) if draws[_JITTERED] < 0.8 else []
        return [*jitter, *_grey(draws), *_blur(draws, blurred)]

    return steps


def _grey(draws: Sequence[float]) -> list[Step]:
    return [Step("color", 0.0)] if draws[_GREYED] < 0.2 else []


def _blur(draws: Sequence[float], probability: float) -> list[Step]:
    return [Step("blur", 0.1 + 1.9 * draws[_SIGMA])] if draws[_BLURRED] < probability else []


def _channels_first(images: Array) -> Tensor:
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def _pad(size: int) -> int:
    return max(1, size // 8)


def _may_flip(view: View, height: int, width: int) -> bool:
    return view.flip and min(height, width) > _TINY


def _checked(u: Array, view: View, dims: int) -> Array:
    if u.ndim != dims or u.shape[-1] < view.draws:
        raise ValueError(f"view {view.name!r} needs {view.draws} uniform numbers for an image, got shape {u.shape}")
    return u


VIEWS = {
    "sim": _Kind((0.08, 1.0), _sim),
    "rand": _Kind((0.08, 1.0), _rand),
    "rand_stack": _Kind((0.08, 1.0), _rand_stack),
    "mae": _Kind((0.08, 1.0), _mae, resample="bicubic"),
    "cifar_regular": _Kind(None, lambda view, draws: auto_augment(draws[_POLICY:]), hole=True),
    "cifar_sim": _Kind((0.2, 1.0), _cifar(0.5)),
    "cifar_aug": _Kind((0.2, 1.0), _cifar(0.2)),
    "plain": _Kind((0.25, 1.0), _nothing),
}
