"""The fifteen corruptions with which Hendrycks and Dietterich (2019) made ImageNet-C and CIFAR-10-C.

Each is a function of an image (H, W, 3) uint8, its constants (in corruptions.py) and a random generator, for any size
of at least 32 x 32. Values are truncated to whole numbers, as in the released scripts; where those called ImageMagick
(motion blur), they are rounded.
"""

import math
from functools import lru_cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

from gpaco.data.images import Pixels
from gpaco.errors import EnvironmentProblem, installing

Floats = NDArray[Any]


def gaussian_noise(image: Pixels, sigma: float, draw: Generator) -> Pixels:
    return _bytes(_unit(image) + draw.normal(scale=sigma, size=image.shape))


def shot_noise(image: Pixels, photons: float, draw: Generator) -> Pixels:
    return _bytes(draw.poisson(_unit(image) * photons) / photons)


def impulse_noise(image: Pixels, share: float, draw: Generator) -> Pixels:
    """Salt and pepper, separately for each color channel."""
    hit, white = draw.random(image.shape) <= share, draw.random(image.shape) <= 0.5
    return np.where(hit, np.where(white, np.uint8(255), np.uint8(0)), image)


def defocus_blur(image: Pixels, lens: tuple[float, float], draw: Generator) -> Pixels:
    return _bytes(cv2.filter2D(_unit(image), -1, _disk(*lens)))


def glass_blur(image: Pixels, glass: tuple[float, int, int], draw: Generator) -> Pixels:
    """Between two blurs, move every pixel to a nearby place."""
    sigma, reach, times = glass
    image = _bytes(_smooth(_unit(image), sigma))
    for _ in range(times):
        image = _scattered(image, reach, draw)
    return _bytes(_smooth(_unit(image), sigma))


def motion_blur(image: Pixels, motion: tuple[int, float], draw: Generator) -> Pixels:
    return np.rint(_moved(image.astype(np.float32), *motion, draw.uniform(-45, 45))).astype(np.uint8)


def zoom_blur(image: Pixels, zoom: tuple[float, float], draw: Generator) -> Pixels:
    """The mean of the image and of increasingly zoomed versions."""
    x = _unit(image).astype(np.float32)
    factors = np.arange(1, *zoom)
    total = x.copy()
    for factor in factors:
        total += _zoomed(x, factor)
    return _bytes(total / (len(factors) + 1))


def snow(image: Pixels, flakes: tuple[float, float, float, float, int, float, float], draw: Generator) -> Pixels:
    mean, sigma, zoom, least, radius, blur, keep = flakes
    layer = _zoomed(draw.normal(mean, sigma, image.shape[:2]), zoom)
    layer = _unit(_bytes(np.where(layer < least, 0, layer))).astype(np.float32)
    layer = np.rint(_moved(layer, radius, blur, draw.uniform(-135, -45)) * 255) / 255
    x = _unit(image)
    pale = np.maximum(x, (x @ [0.299, 0.587, 0.114])[..., None] * 1.5 + 0.5)
    return _bytes(keep * x + (1 - keep) * pale + (layer + layer[::-1, ::-1])[..., None])


def frost(image: Pixels, ice: tuple[float, float, float], draw: Generator) -> Pixels:
    """A crop from one of five photographs of ice on top of the image."""
    keep, strength, scale = ice
    height, width = image.shape[:2]
    photo = _ice(int(draw.integers(5)), scale)
    if photo.shape[0] < height or photo.shape[1] < width:
        larger = max(height / photo.shape[0], width / photo.shape[1])
        size = (math.ceil(photo.shape[1] * larger), math.ceil(photo.shape[0] * larger))
        photo = cv2.resize(photo, size, interpolation=cv2.INTER_CUBIC)  # type: ignore[assignment]
    top, left = (int(draw.integers(photo.shape[axis] - image.shape[axis] + 1)) for axis in (0, 1))
    layer = photo[top : top + height, left : left + width].astype(np.float64)
    return np.clip(keep * image + strength * layer, 0, 255).astype(np.uint8)


def fog(image: Pixels, mist: tuple[float, float], draw: Generator) -> Pixels:
    strength, decay = mist
    height, width = image.shape[:2]
    x = _unit(image)
    high = x.max()
    clouds = _clouds(max(height, width), decay, draw)[:height, :width, None]
    return _bytes((x + strength * clouds) * high / (high + strength))


def brightness(image: Pixels, more: float, draw: Generator) -> Pixels:
    """Raise the value of HSV; keep hue and saturation."""
    x = _unit(image)
    value = x.max(2, keepdims=True)
    brighter = np.clip(value + more, 0, 1)
    return _bytes(np.where(value > 0, x * brighter / np.where(value > 0, value, 1), brighter))


def contrast(image: Pixels, share: float, draw: Generator) -> Pixels:
    x = _unit(image)
    means = x.mean((0, 1), keepdims=True)
    return _bytes((x - means) * share + means)


def elastic_transform(image: Pixels, rubber: tuple[float, float, float, int], draw: Generator) -> Pixels:
    """A random affine map, then a small smooth displacement of every pixel.

    The first three constants are lengths in pixels for an image whose side is the last one, and scale with the image.
    """
    from scipy.ndimage import map_coordinates

    height, width = image.shape[:2]
    strength, sigma, shear = (length * min(height, width) / rubber[3] for length in rubber[:3])
    middle, arm = np.array([width // 2, height // 2]), min(height, width) // 3
    corners = (middle + arm * np.array([[1, 1], [-1, 1], [-1, -1]])).astype(np.float32)
    moved = corners + draw.uniform(-shear, shear, (3, 2)).astype(np.float32)
    sheared = cv2.getAffineTransform(corners, moved)
    x = cv2.warpAffine(_unit(image).astype(np.float32), sheared, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    down, across = (strength * _spread(draw.uniform(-1, 1, (height, width)), sigma) for _ in range(2))
    places = np.stack([np.arange(height)[:, None] + down, np.arange(width) + across])
    between = [map_coordinates(x[..., c], places, order=1, mode="reflect") for c in range(3)]
    return _bytes(np.stack(between, axis=2))


def pixelate(image: Pixels, share: float, draw: Generator) -> Pixels:
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * share), int(height * share)), Image.Resampling.BOX)
    return np.array(small.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image: Pixels, quality: int, draw: Generator) -> Pixels:
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    with Image.open(file) as compressed:
        return np.array(compressed)


def frost_folder() -> Path:
    """Return the folder of the photographs of ice: in imagecorruptions-imaug, which need not be imported."""
    found = find_spec("imagecorruptions")
    if found is None or not found.submodule_search_locations:
        raise EnvironmentProblem(
            "the corruption frost needs the photographs of imagecorruptions-imaug, which is not installed",
            f"{installing('robustness')}, or leave frost out: --corruptions",
        )
    return Path(found.submodule_search_locations[0]) / "frost"


@lru_cache(maxsize=10)
def _ice(number: int, scale: float) -> Pixels:
    name = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")[number]
    path = frost_folder() / name
    photo = cv2.imread(str(path), cv2.IMREAD_COLOR_RGB)
    if photo is None:
        raise EnvironmentProblem(f"cannot read {path}", "install imagecorruptions-imaug again")
    return np.asarray(photo if scale == 1 else cv2.resize(photo, (0, 0), fx=scale, fy=scale), np.uint8)


@lru_cache(maxsize=10)
def _disk(radius: float, blur: float) -> Floats:
    """Return a blurred disk that sums to 1."""
    reach, side = (8, 3) if radius <= 8 else (int(radius), 5)
    line = np.arange(-reach, reach + 1)
    disk = (line**2 + line[:, None] ** 2 <= radius**2).astype(np.float32)
    return np.asarray(cv2.GaussianBlur(disk / disk.sum(), (side, side), sigmaX=blur))


def _smooth(x: Floats, sigma: float) -> Floats:
    """Blur rows and columns with a Gaussian cut at four standard deviations; border pixels are repeated."""
    from scipy.ndimage import gaussian_filter

    return np.asarray(gaussian_filter(x, (sigma, sigma, 0), mode="nearest", truncate=4.0))


def _spread(x: Floats, sigma: float) -> Floats:
    """Blur rows and columns with a Gaussian cut at three standard deviations; the image is mirrored at the border.

    The widest one is larger than the image. With mirrored borders, it multiplies each cosine by a factor, so the blur
    is done on the discrete cosine transform.
    """
    from scipy.fft import dctn, idctn

    if sigma == 0:  # the mildest severity of small images
        return x
    rows, columns = (_damping(side, sigma) for side in x.shape)
    return np.asarray(idctn(dctn(x) * rows[:, None] * columns))


def _damping(side: int, sigma: float) -> Floats:
    """Return the factor by which a Gaussian cut at three standard deviations damps each cosine of a line, (side,)."""
    steps = np.arange(-int(3 * sigma + 0.5), int(3 * sigma + 0.5) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    around = np.bincount(steps % (2 * side), weights / weights.sum(), minlength=2 * side)
    return np.asarray(np.fft.rfft(around).real[:side])


def _scattered(image: Pixels, reach: int, draw: Generator) -> Pixels:
    """Replace each pixel, from the last to the first, by the current value of one at most `reach` away.

    (The released loop means to swap the two, but it swaps views of the image, so the other one stays.)
    All pixels are resolved at once: a pointer from each pixel to its source, which is either an original pixel (index
    shifted by the number of pixels) or a replaced one, is followed until nothing changes.
    """
    height, width = image.shape[:2]
    pixels = height * width
    inside = np.arange(pixels).reshape(height, width)[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1]
    down, across = draw.integers(-reach, reach, (2, *inside.shape))
    source = inside + down * width + across
    done_before = np.zeros(pixels, bool)
    done_before[inside] = True
    pointer = np.arange(2 * pixels)
    pointer[:pixels] += pixels
    pointer[inside] = np.where((source > inside) & done_before[source], source, source + pixels)
    while not np.array_equal(further := pointer[pointer], pointer):
        pointer = further
    return np.asarray(image.reshape(pixels, 3)[pointer[:pixels] - pixels].reshape(image.shape))


def _moved(x: Floats, radius: int, sigma: float, degrees: float) -> Floats:
    """Blur with half a Gaussian along a line, as ImageMagick's motion blur; border pixels are repeated."""
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights = (weights / weights.sum()).astype(np.float32)
    angle = math.radians(degrees)
    right, down = (np.ceil(steps * side - 0.5).astype(int) for side in (math.cos(angle), math.sin(angle)))
    left, top = max(-int(right.min()), 0), max(-int(down.min()), 0)
    border = (top, max(int(down.max()), 0), left, max(int(right.max()), 0))
    padded = cv2.copyMakeBorder(x, *border, borderType=cv2.BORDER_REPLICATE)
    height, width = x.shape[:2]
    total = np.zeros_like(x)
    for weight, i, j in zip(weights, down + top, right + left, strict=True):
        total += weight * padded[i : i + height, j : j + width]
    return total


def _zoomed(x: Floats, factor: float) -> Floats:
    """Return the center of an image, enlarged by `factor` to the same size with linear interpolation."""
    for axis in (0, 1):
        first, share = _between(x.shape[axis], factor)
        here = x.take(first, axis)
        step = x.take(first + 1, axis)
        step -= here
        step *= share.astype(x.dtype).reshape((-1, 1, 1)[: x.ndim] if axis == 0 else (1, -1, 1)[: x.ndim])
        x = np.add(here, step, out=here)
    return x


@lru_cache(maxsize=200)
def _between(side: int, factor: float) -> tuple[NDArray[np.int64], Floats]:
    """Return the source of each pixel of a line that is enlarged around its middle: index and fraction after it."""
    part = math.ceil(side / factor)
    whole = round(part * factor)
    places = (side - part) // 2 + (np.arange(side) + (whole - side) // 2) * ((part - 1) / (whole - 1))
    first = np.minimum(places.astype(np.int64), side - 2)
    return first, places - first


def _clouds(side: int, decay: float, draw: Generator) -> Floats:
    """Return fractal noise from 0 to 1, by the diamond-square method on a torus whose side is a power of two."""
    size = 1 << (side - 1).bit_length()
    land = np.zeros((size, size))
    step, bump = size, 100.0

    def around(sums: Floats) -> Floats:
        return np.asarray(sums / 4 + bump * draw.uniform(-bump, bump, sums.shape))

    while step >= 2:
        half = step // 2
        corners = land[::step, ::step]
        pairs = corners + np.roll(corners, -1, 0)
        centers = land[half::step, half::step] = around(pairs + np.roll(pairs, -1, 1))
        land[::step, half::step] = around(centers + np.roll(centers, 1, 0) + corners + np.roll(corners, -1, 1))
        land[half::step, ::step] = around(centers + np.roll(centers, 1, 1) + pairs)
        step, bump = half, bump / decay
    land -= land.min()
    return np.asarray(land / land.max())


def _unit(image: Pixels) -> Floats:
    return image / 255.0


def _bytes(x: Floats) -> Pixels:
    return np.asarray(np.clip(x, 0, 1) * 255, np.uint8)
