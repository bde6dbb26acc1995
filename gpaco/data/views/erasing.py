"""Random erasing (Zhong et al., 2020): a rectangle of a normalized image becomes noise, as in MAE's fine-tuning."""

import math
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from gpaco.data.views.policies import Box

_AREA = 0.02, 1 / 3  # least and greatest share of the image
_LOG_ASPECT = math.log(0.3)
_TRIES = 10
DRAWS_OF_ERASING = 2 * _TRIES + 4  # whether to erase; area and aspect of each try; position; seed of the noise


def erase_(images: Tensor, chance: float, u: npt.NDArray[Any]) -> None:
    """Replace a rectangle of some images (B, 3, H, W) by Gaussian noise, in place.

    u: (B, DRAWS_OF_ERASING) uniform numbers; the result for an image depends only on its own row.
    """
    where, noise = torch.zeros(len(images), 1, *images.shape[2:], dtype=torch.bool), torch.zeros(images.shape)
    for k, (whether, *draws, seed) in enumerate(u.tolist()):
        box = erased_box(images.shape[2], images.shape[3], draws) if whether < chance else None
        if box is not None:
            rows, columns = slice(box.top, box.top + box.height), slice(box.left, box.left + box.width)
            where[k, :, rows, columns] = True
            noise[k, :, rows, columns] = torch.randn(
                3, box.height, box.width, generator=torch.Generator().manual_seed(int(seed * 2**53))
            )
    device = images.device  # two copies per batch, not one per image
    images.copy_(noise.to(device, images.dtype).where(where.to(device), images))


def erased_box(height: int, width: int, draws: Sequence[float]) -> Box | None:
    """Return a rectangle of 2% to 33% of the area and an aspect of 0.3 to 1 / 0.3; None if ten tries do not fit."""
    for area, aspect in zip(draws[0 : 2 * _TRIES : 2], draws[1 : 2 * _TRIES : 2], strict=True):
        pixels = height * width * (_AREA[0] + (_AREA[1] - _AREA[0]) * area)
        ratio = math.exp(_LOG_ASPECT * (1 - 2 * aspect))
        h, w = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if h < height and w < width:
            top, left = draws[2 * _TRIES : 2 * _TRIES + 2]
            return Box(int(top * (height - h + 1)), int(left * (width - w + 1)), h, w)
    return None
