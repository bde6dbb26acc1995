"""Augmentations drawn from uniform numbers: crops, color jitter, RandAugment, AutoAugment.

Nothing here touches a pixel. A draw takes numbers in [0, 1) and returns a box or a list of `Step`s; photo_ops.py
applies them. Tables and constants are those of the released code: old timm's RandAugment ("rand-n{n}-m{m}-mstd0.5",
where not all effects grow with m; in MAE's "inc1" they do) and the AutoAugment policy found on CIFAR-10.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

Fill = tuple[int, int, int]
Matrix = tuple[float, float, float, float, float, float]

GRAY: Fill = (128, 128, 128)
IMAGENET_MEAN: Fill = (124, 116, 104)  # the released fill, on other data sets too


class Step(NamedTuple):
    """One operation. `resample` and `fill` are only for geometric ones, `moves` only for the warp."""

    name: str
    value: float = 0.0
    resample: str = "bilinear"  # or "nearest", "bicubic"
    fill: Fill = GRAY
    moves: tuple[float, ...] = ()


class Box(NamedTuple):
    """A rectangle of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


GEOMETRIC = frozenset({"rotate", "shear_x", "shear_y", "translate_x", "translate_y"})
ENHANCING = ("color", "contrast", "brightness", "sharpness")  # 1 leaves the image unchanged

# RandAugment: the value of each operation at level 0 and at level 10, linear between. Rotation in degrees, translation
# as a share of the side, posterize in bits kept, solarize as a threshold. Whole numbers are rounded down: at m = 10,
# posterize keeps 4 bits if the level was clipped to 10, which happens half of the time, and 3 otherwise.
RAND_AUGMENT: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("autocontrast", "equalize", "invert"), (0, 0)),
    "rotate": (0, 30),
    "posterize": (0, 4),
    "solarize": (0, 256),
    "solarize_add": (0, 110),
    **dict.fromkeys(ENHANCING, (0.1, 1.9)),
    **dict.fromkeys(("shear_x", "shear_y"), (0, 0.3)),
    **dict.fromkeys(("translate_x", "translate_y"), (0, 0.45)),
}
# The same, but a higher level is always a stronger effect. Enhancements are 1 plus or minus the value.
RAND_INCREASING = RAND_AUGMENT | {"posterize": (4, 0), "solarize": (256, 0), **dict.fromkeys(ENHANCING, (0, 0.9))}
RAND_PROBABILITY = 0.5
RAND_DEVIATION = 0.5  # of the level
DRAWS_PER_RAND_STEP = 5  # which, whether, level, sign, resampling

# AutoAugment: the value of each operation at level 0 and at level 9. Enhancements are 1 plus or minus the value.
# Rotation is the one geometric operation without a random sign.
AUTO_AUGMENT: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("autocontrast", "equalize", "invert"), (0, 0)),
    "rotate": (0, 30),
    "posterize": (8, 4),
    "solarize": (256, 0),
    **dict.fromkeys(ENHANCING, (0, 0.9)),
    "shear_y": (0, 0.3),
    **dict.fromkeys(("translate_x", "translate_y"), (0, 150 / 331)),
}
# Two operations each: name, probability, level.
CIFAR10_POLICY: tuple[tuple[tuple[str, float, int], tuple[str, float, int]], ...] = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
    (("color", 0.9, 9), ("equalize", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 1)),
)
DRAWS_OF_AUTO_AUGMENT = 5  # which pair, then whether and sign for each of the two

CROP_TRIES = 10
DRAWS_OF_CROP = 2 * CROP_TRIES + 2
_ASPECT = 4 / 3  # and its inverse
_LOG_ASPECT = math.log(_ASPECT)
_NORMAL = NormalDist()


def rand_value(name: str, level: float, increasing: bool = False) -> float:
    """Return the value of a RandAugment operation at a level of 0 to 10, without its sign."""
    low, high = (RAND_INCREASING if increasing else RAND_AUGMENT)[name]
    change = (high - low) * (level / 10)
    return low + int(change) if name in ("posterize", "solarize", "solarize_add") else low + change


def auto_value(name: str, level: int) -> float:
    """Return the value of an AutoAugment operation at a level of 0 to 9, without its sign."""
    low, high = AUTO_AUGMENT[name]
    value = low + (high - low) * (level / 9)
    return round(value) if name == "posterize" else value


def rand_augment(draws: Sequence[float], ops: int, magnitude: float, increasing: bool = False) -> list[Step]:
    """Draw `ops` operations with replacement, each applied with probability 0.5 at a level near `magnitude`.

    With `increasing`, all effects grow with the magnitude and resampling is always bicubic, as in MAE.
    """
    names = list(RAND_AUGMENT)
    steps = []
    for which, whether, level, sign, resample in zip(*[iter(draws[: ops * DRAWS_PER_RAND_STEP])] * 5, strict=True):
        if whether >= RAND_PROBABILITY:
            continue
        name = names[int(which * len(names))]
        deviation = RAND_DEVIATION * _NORMAL.inv_cdf(max(level, 2.0**-54))
        value = rand_value(name, min(max(magnitude + deviation, 0.0), 10.0), increasing)
        if sign < 0.5 and (name in GEOMETRIC or (increasing and name in ENHANCING)):
            value = -value
        if increasing and name in ENHANCING:
            value = 1 + value
        steps.append(Step(name, value, "bilinear" if resample < 0.5 and not increasing else "bicubic", IMAGENET_MEAN))
    return steps


def auto_augment(draws: Sequence[float]) -> list[Step]:
    """Draw one of the 25 pairs of the CIFAR-10 policy: at most two operations."""
    pair = CIFAR10_POLICY[int(draws[0] * len(CIFAR10_POLICY))]
    steps = []
    for (name, probability, level), whether, sign in zip(pair, draws[1:5:2], draws[2:5:2], strict=True):
        if whether >= probability:
            continue
        value = auto_value(name, level)
        if sign < 0.5 and name != "rotate" and (name in GEOMETRIC or name in ENHANCING):
            value = -value
        if name in ENHANCING:
            value = 1 + value
        steps.append(Step(name, value, "bicubic" if name == "shear_y" else "nearest", GRAY))
    return steps


def color_jitter(order: Sequence[float], factors: Sequence[float], hue: float) -> list[Step]:
    """Change brightness, contrast and saturation by 0.6 to 1.4 and hue by up to `hue` of the circle, in any order."""
    names = ("brightness", "contrast", "color")
    steps = [Step(name, 1 + 0.4 * (2 * factor - 1)) for name, factor in zip(names, factors, strict=False)]
    if hue:
        steps.append(Step("hue", hue * (2 * factors[3] - 1)))
    return [step for _, step in sorted(zip(order, steps, strict=False), key=lambda pair: pair[0])]


def crop_box(height: int, width: int, scale: tuple[float, float], draws: Sequence[float]) -> Box:
    """Return a random crop: `scale` is the range of its share of the area; the aspect ratio is 3/4 to 4/3.

    As in torchvision's RandomResizedCrop: ten tries, then the largest center crop with an aspect ratio in the range.
    """
    for area, aspect in zip(draws[0 : 2 * CROP_TRIES : 2], draws[1 : 2 * CROP_TRIES : 2], strict=True):
        pixels = height * width * (scale[0] + (scale[1] - scale[0]) * area)
        ratio = math.exp(-_LOG_ASPECT + 2 * _LOG_ASPECT * aspect)
        w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = draws[2 * CROP_TRIES : DRAWS_OF_CROP]
            return Box(int(top * (height - h + 1)), int(left * (width - w + 1)), h, w)
    h = min(height, round(width * _ASPECT))
    w = min(width, round(height * _ASPECT))
    return Box((height - h) // 2, (width - w) // 2, h, w)


def affine(name: str, value: float, height: int, width: int) -> Matrix:
    """(a, b, c, d, e, f): output (x, y) shows input (a x + b y + c, d x + e y + f), in Pillow's coordinates.

    There, the center of the first pixel is (0.5, 0.5). Rotation is counterclockwise around the center of the image.
    """
    if name == "rotate":
        cos, sin = math.cos(math.radians(value)), math.sin(math.radians(value))
        x, y = width / 2, height / 2
        return cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y
    if name == "shear_x":
        return 1, value, 0, 0, 1, 0
    if name == "shear_y":
        return 1, 0, 0, value, 1, 0
    if name == "translate_x":
        return 1, 0, value * width, 0, 1, 0
    return 1, 0, 0, 0, 1, value * height
