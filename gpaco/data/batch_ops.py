"""Operations on a whole batch of small images, (B, 3, H, W) uint8, each sample with parameters of its own.

What happens to an image must not depend on its neighbours in the batch, to the last bit. So sums are sums of whole
numbers, and everything else is done value by value: no matrix products, no convolutions, no float reductions.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from gpaco.data.photo_ops import COUNTED, TABLED, blur_kernel, value_tables
from gpaco.data.policies import GEOMETRIC, Box, Step, affine

Array = npt.NDArray[Any]

_BITS = 22  # of the fixed point numbers in Pillow's resampling


def apply(images: Tensor, rows: Sequence[Sequence[Step]]) -> Tensor:
    """Each image after its own steps. Samples whose next steps are of one kind are treated together."""
    images = images.clone()
    for position in range(max((len(steps) for steps in rows), default=0)):
        groups: dict[str, list[int]] = {}
        for sample, steps in enumerate(rows):
            if position < len(steps):
                groups.setdefault(_kind(steps[position]), []).append(sample)
        for kind, samples in groups.items():
            chosen = torch.tensor(samples)
            done = _KINDS[kind](images.index_select(0, chosen), [rows[sample][position] for sample in samples])
            images.index_copy_(0, chosen, done)
    return images


def shifted(images: Array, tops: Array, lefts: Array, pad: int) -> Tensor:
    """Windows (B, 3, H, W) of the images (B, H, W, 3) with a black border of `pad`, at (B,) tops and lefts."""
    batch, height, width, _ = images.shape
    padded = np.zeros((batch, height + 2 * pad, width + 2 * pad, 3), np.uint8)
    padded[:, pad : pad + height, pad : pad + width] = images
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), (1, 2))
    return torch.from_numpy(windows[np.arange(batch), tops, lefts])


def mirrored(images: Tensor, which: Tensor) -> Tensor:
    """The images, those of `which` (B,) mirrored left to right."""
    return torch.where(which.view(-1, 1, 1, 1), images.flip(3), images)


def cutout(images: Tensor, rows: Tensor, columns: Tensor, side: int) -> Tensor:
    """The images with a black square around (rows, columns), which may hang over the border."""
    height, width = images.shape[2:]
    y = torch.arange(height) - rows[:, None] + side // 2
    x = torch.arange(width) - columns[:, None] + side // 2
    inside = ((y >= 0) & (y < side))[:, None, :, None] & ((x >= 0) & (x < side))[:, None, None, :]
    return images.masked_fill(inside, 0)


def resized_crops(images: Tensor, boxes: Sequence[Box], height: int, width: int, resample: str = "bilinear") -> Tensor:
    """The part of each image inside its box, resized as Pillow does, bit for bit: "bilinear" or "bicubic"."""
    tops, lefts, heights, widths = np.array(boxes, np.int64).reshape(-1, 4).T
    images = _resample(images, 3, lefts, widths, width, resample)
    return _resample(images, 2, tops, heights, height, resample)


def _resample(images: Tensor, axis: int, starts: Array, lengths: Array, size: int, resample: str) -> Tensor:
    """`size` values along an axis from the `lengths` (B,) values at `starts` (B,)."""
    radius, kernel = _FILTERS[resample]
    stretch = (lengths / size)[:, None, None]
    scale = np.maximum(stretch, 1.0)
    support = radius * scale
    centres = (np.arange(size) + 0.5)[:, None] * stretch
    first = np.maximum(np.floor(centres - support + 0.5), 0)
    # As many taps as the longest axis could ask for, not the longest of this batch.
    taps = first + np.arange(math.ceil(2 * radius * max(1.0, images.shape[axis] / size)))
    weights = kernel(np.abs((taps - centres + 0.5) / scale))
    weights[(taps >= np.floor(centres + support + 0.5)) | (taps >= lengths[:, None, None])] = 0
    weights /= weights.sum(2, keepdims=True)
    whole = torch.from_numpy(np.trunc(weights * 2**_BITS + np.copysign(0.5, weights)).astype(np.int32))
    places = torch.from_numpy((np.minimum(taps, lengths[:, None, None] - 1) + starts[:, None, None]).astype(np.int64))

    shape = list(images.shape)
    shape[axis] = size
    side = [len(images), 1, 1, 1]
    side[axis] = size
    values = images.to(torch.int32)
    total = torch.full(shape, 1 << (_BITS - 1), dtype=torch.int32)
    for tap in range(places.shape[2]):
        total += values.gather(axis, places[:, :, tap].reshape(side).expand(shape)).mul_(whole[:, :, tap].reshape(side))
    return total.bitwise_right_shift_(_BITS).clamp_(0, 255).to(torch.uint8)


def _triangle(x: Array) -> Array:
    return np.asarray(np.maximum(1 - x, 0))


def _cubic(x: Array) -> Array:
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


_FILTERS = {"bilinear": (1, _triangle), "bicubic": (2, _cubic)}


def _tables(images: Tensor, steps: list[Step]) -> Tensor:
    """Every operation that treats each value by itself, through tables of 256 values."""
    batch = len(images)
    flat = images.reshape(batch, 3, -1).long()
    counts, means = np.zeros((batch, 3, 256)), np.zeros(batch, np.int64)
    counted = [i for i, step in enumerate(steps) if step.name in COUNTED]
    if counted:
        offsets = torch.arange(3 * len(counted)).view(-1, 3, 1) * 256
        found = torch.bincount((flat[counted] + offsets).flatten(), minlength=3 * 256 * len(counted))
        counts[counted] = found.view(-1, 3, 256).numpy()
    averaged = [i for i, step in enumerate(steps) if step.name == "contrast"]
    if averaged:
        pixels = flat.shape[2]
        means[averaged] = ((2 * _grey(images[averaged]).sum((1, 2, 3)) + pixels) // (2 * pixels)).numpy()
    tables = np.empty((batch, 3, 256), np.uint8)
    for i, step in enumerate(steps):
        tables[i] = value_tables(step, counts[i], int(means[i]))
    return torch.from_numpy(tables).gather(2, flat).view_as(images)


def _warp(images: Tensor, steps: list[Step]) -> Tensor:
    """Geometric operations, all with the same resampling: one gather for each tap of the filter."""
    batch, channels, height, width = images.shape
    matrices = torch.tensor([affine(step.name, step.value, height, width) for step in steps], dtype=torch.float64)
    a, b, c, d, e, f = matrices.view(batch, 6, 1, 1).unbind(1)
    x, y = torch.arange(width) + 0.5, torch.arange(height)[:, None] + 0.5
    across, down = a * x + b * y + c, d * x + e * y + f
    outside = (across < 0) | (across >= width) | (down < 0) | (down >= height)

    flat = images.reshape(batch, channels, -1)
    columns, column_weights = _taps(across, steps[0].resample)
    rows, row_weights = _taps(down, steps[0].resample)
    total = torch.zeros(batch, channels, height, width)
    for row, row_weight in zip(rows, row_weights, strict=True):
        for column, column_weight in zip(columns, column_weights, strict=True):
            place = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
            values = flat.gather(2, place.view(batch, 1, -1).expand(-1, channels, -1)).view_as(images)
            total += values * (row_weight * column_weight)[:, None]
    fill = torch.tensor([step.fill for step in steps], dtype=torch.float32).view(batch, 3, 1, 1)
    return torch.where(outside[:, None], fill, total.clamp(0, 255)).to(torch.uint8)


def _taps(positions: Tensor, resample: str) -> tuple[list[Tensor], list[Tensor]]:
    """Pixels that a position shows, and their weights."""
    if resample == "nearest":
        return [positions.floor().long()], [torch.ones_like(positions, dtype=torch.float32)]
    first = (positions - 0.5).floor()
    t = (positions - 0.5 - first).float()
    if resample == "bilinear":
        return [first.long(), first.long() + 1], [1 - t, t]
    # Pillow's cubic, a = -1
    weights = [t * (t * (2 - t) - 1), t * t * (t - 2) + 1, t * (t * (1 - t) + 1), t * t * (t - 1)]
    return [first.long() + k for k in (-1, 0, 1, 2)], weights


def _color(images: Tensor, steps: list[Step]) -> Tensor:
    """Saturation: from grey over the image to beyond it."""
    return _blend(_grey(images).float(), images, steps)


def _hue(images: Tensor, steps: list[Step]) -> Tensor:
    """Hues turned by a share of the circle, in Pillow's steps of 1/255."""
    red, green, blue = images.float().unbind(1)
    high, low = images.amax(1).float(), images.amin(1).float()
    chroma = (high - low).clamp_min(1)
    sixth = torch.where(
        red == high,
        (green - blue) / chroma,
        torch.where(green == high, 2 + (blue - red) / chroma, 4 + (red - green) / chroma),
    )
    turns = sixth / 6 + 1
    turns = ((turns - turns.floor()) * 255).int()
    shifts = torch.tensor([int(step.value * 255) for step in steps], dtype=torch.int32).view(-1, 1, 1)
    sixth = (turns + shifts & 255) * (6 / 255)
    planes = []
    for corner in (5, 3, 1):
        k = sixth + corner
        k = torch.where(k < 6, k, k - 6)
        planes.append(high - (high - low) * torch.minimum(k, 4 - k).clamp(0, 1))
    return _bytes(torch.stack(planes, 1) + 0.5)


def _sharpness(images: Tensor, steps: list[Step]) -> Tensor:
    """From a 3 x 3 smoothing (Pillow's SMOOTH) over the image to beyond it; the border stays."""
    wide = images.to(torch.int32)
    tall = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]
    inner = tall[..., :-2] + tall[..., 1:-1] + tall[..., 2:] + 4 * wide[:, :, 1:-1, 1:-1]
    smooth = images.float()
    smooth[:, :, 1:-1, 1:-1] = ((2 * inner + 13) // 26).float()  # to the nearest of inner / 13
    return _blend(smooth, images, steps)


def _blur(images: Tensor, steps: list[Step]) -> Tensor:
    """Pillow's Gaussian, rows and columns in turn."""
    kernels = [blur_kernel(step.value) for step in steps]
    reach = max(len(kernel) for kernel in kernels) // 2
    weights = torch.zeros(len(images), 2 * reach + 1, 1, 1, 1)
    for row, kernel in zip(weights, kernels, strict=True):
        side = reach - len(kernel) // 2
        row[side : side + len(kernel)] = torch.tensor(kernel).view(-1, 1, 1, 1)
    smooth = images.float()
    for axis in (2, 3):
        size = images.shape[axis]
        border = (0, 0, reach, reach) if axis == 2 else (reach, reach, 0, 0)
        padded = F.pad(smooth, border, mode="replicate")
        smooth = padded.narrow(axis, 0, size) * weights[:, 0]
        for tap in range(1, 2 * reach + 1):
            smooth += padded.narrow(axis, tap, size) * weights[:, tap]
    return _bytes(smooth + 0.5)


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.to(torch.int32).split(1, dim=1)
    total: Tensor = red * 19595 + green * 38470 + blue * 7471 + 0x8000  # Pillow's weights
    return total >> 16


def _blend(start: Tensor, images: Tensor, steps: list[Step]) -> Tensor:
    """From `start` at factor 0 over the image at 1 and beyond."""
    factor = torch.tensor([step.value for step in steps], dtype=torch.float32).view(-1, 1, 1, 1)
    return _bytes(start + factor * (images.float() - start))


def _bytes(values: Tensor) -> Tensor:
    return values.clamp(0, 255).to(torch.uint8)


def _kind(step: Step) -> str:
    if step.name in TABLED:
        return "table"
    return step.resample if step.name in GEOMETRIC else step.name


_KINDS = {
    "table": _tables,
    "nearest": _warp,
    "bilinear": _warp,
    "bicubic": _warp,
    "color": _color,
    "hue": _hue,
    "sharpness": _sharpness,
    "blur": _blur,
}
