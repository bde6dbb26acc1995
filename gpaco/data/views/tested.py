"""The view of an image for testing. Needs no torch: exported models are used without it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

Array = npt.NDArray[Any]
Resize = Callable[[Array, int, int, str], Array]  # image, height, width, "bilinear" or "bicubic"


@dataclass(frozen=True)
class TestView:
    """How an image is resized for a model."""

    size: int  # side of the result, in pixels
    resize: int  # shorter side of the image before the center crop
    whole: bool  # resize the whole image instead, as for small images in memory
    interpolation: str  # "bilinear" or "bicubic"

    @property
    def least(self) -> int:
        """The pixels of the shorter side that the view uses."""
        return self.size if self.whole else self.resize


def sized(image: Array, view: TestView, resize: Resize) -> Array:
    """Return the image (H, W, 3) uint8 as (size, size, 3), resized by the given function."""
    height, width = image.shape[:2]
    if view.whole:
        same = height == width == view.size
        return image if same else resize(image, view.size, view.size, view.interpolation)
    short = min(height, width)
    # torchvision rounds the longer side down
    tall, wide = (view.resize if side == short else int(view.resize * side / short) for side in (height, width))
    out = resize(image, tall, wide, view.interpolation)
    top, left = round((tall - view.size) / 2), round((wide - view.size) / 2)
    return np.ascontiguousarray(out[top : top + view.size, left : left + view.size])


def resized_by_pillow(image: Array, height: int, width: int, resample: str) -> Array:
    """Return a resized image, within one gray level of `photo_ops.resized_crop`."""
    if image.shape[0] <= height and image.shape[1] <= width and resample == "bilinear":
        return cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling[resample.upper()]))
