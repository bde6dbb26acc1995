"""The augmentation of the paper: training images are scaled, cropped, mirrored, and their colors distorted.

Everything is a pure function of an image, its mask and a row of uniform numbers, which `counter_random.uniforms`
computes from (seed, epoch, index): crops are the same for any number of workers, processes and restarts.
"""

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from gpaco.metrics.segmentation import IGNORE
from gpaco.recipes.settings import Segmentation

Image = NDArray[np.uint8]  # (H, W, 3) RGB
Mask = NDArray[np.uint8]  # (H, W), 255 is no class
Size = tuple[int, ...]  # height, width

TRIES = 10  # crops to try before accepting one with too much of one class
DRAWS = 1 + 2 * TRIES + 1 + 9  # uniform numbers for one image


def training_crop(
    image: Image, mask: Mask, u: NDArray[np.float64], settings: Segmentation, fill: Sequence[int]
) -> tuple[Image, Mask]:
    """Return an image and its mask, each of the size `settings.crop`; `u` is (DRAWS,).

    A smaller image is padded with the color `fill`, its mask with 255.
    """
    crop, (least, greatest) = settings.crop, settings.scale
    factor = fitting(image.shape[:2], settings.base_size) * (least + (greatest - least) * u[0])
    image, mask = rescaled(image, mask, factor)
    top, left = _place(mask, crop, u[1 : 1 + 2 * TRIES], settings.max_share)
    image, mask = image[top : top + crop[0], left : left + crop[1]], mask[top : top + crop[0], left : left + crop[1]]
    if u[1 + 2 * TRIES] < 0.5:
        image, mask = np.ascontiguousarray(image[:, ::-1]), np.ascontiguousarray(mask[:, ::-1])
    if settings.colors:
        image = distorted(image, u[2 + 2 * TRIES :])
    return _filled(image, mask, crop, fill)


def fitting(size: Size, base_size: Size) -> float:
    """Return the factor by which an image just fits into `base_size` (shorter side, longer side).

    >>> fitting((100, 400), (50, 1000)), fitting((100, 400), (50, 100))
    (0.5, 0.25)
    """
    return min(min(base_size) / min(size), max(base_size) / max(size))


def rescaled(image: Image, mask: Mask, factor: float) -> tuple[Image, Mask]:
    """Resize an image (bilinear) and mask (nearest) to `factor` times their size."""
    height, width = (max(1, round(side * factor)) for side in mask.shape)
    if (height, width) == mask.shape:
        return image, mask
    return (
        np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8),
        np.asarray(cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST_EXACT), np.uint8),
    )


def _place(mask: Mask, crop: Size, u: NDArray[np.float64], max_share: float) -> tuple[int, int]:
    """Return top and left of the first crop in which no class has more than `max_share`, or else of the last try."""
    free = (max(mask.shape[0] - crop[0], 0), max(mask.shape[1] - crop[1], 0))
    top = left = 0
    for k in range(TRIES):
        top, left = int(u[2 * k] * (free[0] + 1)), int(u[2 * k + 1] * (free[1] + 1))
        counts = np.bincount(mask[top : top + crop[0], left : left + crop[1]].ravel(), minlength=256)[:IGNORE]
        if np.count_nonzero(counts) > 1 and counts.max() < max_share * counts.sum():
            break
    return top, left


def distorted(image: Image, u: NDArray[np.float64]) -> Image:
    """Change brightness, contrast, saturation and hue, each half of the time; contrast before or after the colors.

    The ranges are those of the released configurations: brightness by up to 32 levels, contrast and saturation by 0.5
    to 1.5, hue by up to 18 of 180 steps. `u` is (9,).
    """
    if u[0] < 0.5:
        image = np.asarray(cv2.convertScaleAbs(np.maximum(image.astype(np.float32) + (64 * u[1] - 32), 0)), np.uint8)
    contrast_first = u[2] < 0.5
    factor = 0.5 + u[4] if u[3] < 0.5 else 1.0
    if contrast_first and factor != 1:
        image = np.asarray(cv2.convertScaleAbs(image, alpha=factor), np.uint8)
    if u[5] < 0.5 or u[7] < 0.5:
        hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
        if u[5] < 0.5:
            hsv[..., 1] = np.minimum(hsv[..., 1] * (0.5 + u[6]), 255)
        if u[7] < 0.5:
            hsv[..., 0] = (hsv[..., 0].astype(np.int16) + int(37 * u[8]) - 18) % 180
        image = np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB), np.uint8)
    if not contrast_first and factor != 1:
        image = np.asarray(cv2.convertScaleAbs(image, alpha=factor), np.uint8)
    return image


def _filled(image: Image, mask: Mask, crop: Size, fill: Sequence[int]) -> tuple[Image, Mask]:
    height, width = mask.shape
    if (height, width) == crop:
        return image, mask
    whole = np.full((*crop, 3), fill, np.uint8)
    whole[:height, :width] = image
    labels = np.full(crop, IGNORE, np.uint8)
    labels[:height, :width] = mask
    return whole, labels
