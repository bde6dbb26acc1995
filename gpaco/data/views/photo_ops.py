"""Operations on one image, (H, W, 3) uint8 RGB, with OpenCV: the results of Pillow within a gray level or two.

Results do not depend on the number of threads.
"""

import math
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from gpaco.data.views.policies import GEOMETRIC, Box, Fill, Matrix, Step, affine
from gpaco.data.views.spline import spline_warp

Array = npt.NDArray[Any]

_VALUES = np.arange(256)
_RESAMPLE = {"nearest": cv2.INTER_NEAREST, "bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}


def apply(image: Array, step: Step) -> Array:
    """Return the image after one step."""
    if step.name in _ENHANCE:
        return _ENHANCE[step.name](image, step.value)
    if step.name in GEOMETRIC:
        return warp(image, affine(step.name, step.value, *image.shape[:2]), step.resample, step.fill)
    return spline_warp(image, step.moves) if step.name == "warp" else _by_table(image, step)


def resized_crop(image: Array, box: Box, height: int, width: int, resample: str = "bilinear") -> Array:
    """Return the part of an image in a box, resized as in Pillow: "bilinear" (a triangle filter) or "bicubic"."""
    part = image[box.top : box.top + box.height, box.left : box.left + box.width]
    if box.height <= height and box.width <= width and resample == "bilinear":
        return cv2.resize(part, (width, height), interpolation=cv2.INTER_LINEAR)
    # To shrink, the filter must widen; OpenCV's does not. PyTorch's matches Pillow, and is fast with channels last.
    planes = torch.from_numpy(part.copy()).unsqueeze(0).permute(0, 3, 1, 2)
    small = F.interpolate(planes, (height, width), mode=resample, antialias=True)
    return small[0].permute(1, 2, 0).numpy()


def warp(image: Array, matrix: Matrix, resample: str, fill: Fill) -> Array:
    """Show the input at matrix * (x, y, 1) in output pixel (x, y), see `affine`; outside the image, the fill."""
    a, b, c, d, e, f = matrix
    height, width = image.shape[:2]
    # OpenCV puts the first pixel's center at (0, 0).
    centered = np.array([[a, b, c + (a + b - 1) / 2], [d, e, f + (d + e - 1) / 2]])
    # Four channels of bytes take half the time of three; in bicubic resampling, floats are faster than bytes.
    wide = image.astype(np.float32) if resample == "bicubic" else cv2.cvtColor(image, cv2.COLOR_RGB2RGBA)
    flags = _RESAMPLE[resample] | cv2.WARP_INVERSE_MAP
    out = cv2.warpAffine(wide, centered, (width, height), flags=flags, borderValue=fill)
    if resample != "bicubic":
        return cv2.cvtColor(out, cv2.COLOR_RGBA2RGB)
    return cv2.convertScaleAbs(np.maximum(out, 0, out=out))


def brightness(image: Array, factor: float) -> Array:
    """0 is black, 1 the image itself."""
    return cv2.convertScaleAbs(image, alpha=factor)


def contrast(image: Array, factor: float) -> Array:
    """0 is the gray of the image's mean, 1 the image itself."""
    red, green, blue, _ = cv2.mean(image)
    mean = int(0.299 * red + 0.587 * green + 0.114 * blue + 0.5)
    return cv2.addWeighted(image, factor, image, 0, mean * (1 - factor))


def color(image: Array, factor: float) -> Array:
    """Saturation: 0 is gray, 1 the image itself."""
    red, green, blue = 0.299 * (1 - factor), 0.587 * (1 - factor), 0.114 * (1 - factor)
    weights = [[red + factor, green, blue], [red, green + factor, blue], [red, green, blue + factor]]
    return cv2.transform(image, np.array(weights))


def hue(image: Array, shift: float) -> Array:
    """Rotate hues by a share of the circle."""
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
    hsv[..., 0] += np.uint8(int(shift * 255) % 256)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL)


def sharpness(image: Array, factor: float) -> Array:
    """0 is a 3 x 3 smoothing (Pillow's SMOOTH), 1 the image itself, more is sharper; the border is unchanged."""
    smooth = cv2.addWeighted(cv2.blur(image, (3, 3)), 9 / 13, image, 4 / 13, 0)
    out = cv2.addWeighted(image, factor, smooth, 1 - factor, 0)
    for edge in np.s_[:1], np.s_[-1:], np.s_[:, :1], np.s_[:, -1:]:
        out[edge] = image[edge]
    return out


def blur(image: Array, sigma: float) -> Array:
    """Blur as Pillow's GaussianBlur."""
    kernel = blur_kernel(sigma)
    return cv2.sepFilter2D(image, -1, kernel, kernel, borderType=cv2.BORDER_REPLICATE)


def blur_kernel(sigma: float) -> Array:
    """Return the weights of Pillow's Gaussian: a box with soft ends, applied three times. At most 13 up to sigma 2."""
    variance = sigma * sigma / 3  # of each box
    inner = int((math.sqrt(12 * variance + 1) - 1) / 2)
    share = (2 * inner + 1) * (inner * (inner + 1) - 3 * variance) / (6 * (variance - (inner + 1) ** 2))
    box = [share, *[1.0] * (2 * inner + 1), share]
    kernel: Array = np.convolve(np.convolve(box, box), box)
    kernel /= kernel.sum()
    return kernel


def cutout(image: Array, row: int, column: int, side: int) -> Array:
    """Return the image with a black square around (row, column), clipped at the border."""
    top, left = row - side // 2, column - side // 2
    image = image.copy()
    image[max(top, 0) : max(top + side, 0), max(left, 0) : max(left + side, 0)] = 0
    return image


def autocontrast_tables(histograms: Array) -> Array:
    """Return tables (N, 256) that stretch the range of values in each histogram (N, 256) to 0 .. 255."""
    present = histograms > 0
    low = present.argmax(1)[:, None]
    high = 255 - present[:, ::-1].argmax(1)[:, None]
    scale = 255 / np.maximum(high - low, 1)
    tables = np.where(high > low, np.clip(_VALUES * scale - low * scale, 0, 255), _VALUES)
    return tables.astype(np.uint8)


def equalize_tables(histograms: Array) -> Array:
    """Return tables (N, 256) that make the values in each histogram (N, 256) about equally frequent, as Pillow does."""
    histograms = histograms.astype(np.int64)
    last = np.take_along_axis(histograms, 255 - (histograms > 0)[:, ::-1].argmax(1)[:, None], 1)
    step = (histograms.sum(1, keepdims=True) - last) // 255
    below = histograms.cumsum(1) - histograms
    tables = np.minimum((step // 2 + below) // np.maximum(step, 1), 255)
    return np.where(step > 0, tables, _VALUES).astype(np.uint8)


def _by_table(image: Array, step: Step) -> Array:
    """Apply a lookup table: a new value for each of the 256 values, the same or different for each channel."""
    value = step.value
    match step.name:
        case "autocontrast":
            table = autocontrast_tables(_histograms(image))
        case "equalize":
            table = equalize_tables(_histograms(image))
        case "invert":
            table = 255 - _VALUES
        case "posterize":
            table = _VALUES & ~((1 << (8 - int(value))) - 1)
        case "solarize":
            table = np.where(value > _VALUES, _VALUES, 255 - _VALUES)
        case _:  # solarize_add
            table = np.where(_VALUES < 128, np.minimum(_VALUES + int(value), 255), _VALUES)
    table = table.astype(np.uint8)
    return cv2.LUT(image, table if table.ndim == 1 else np.ascontiguousarray(table.T)[None])


def _histograms(image: Array) -> Array:
    return np.stack([cv2.calcHist([image], [c], None, [256], [0, 256]).ravel() for c in range(3)])


_ENHANCE = {function.__name__: function for function in (brightness, contrast, color, hue, sharpness, blur)}
