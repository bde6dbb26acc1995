"""Corrupted images: the 15 corruptions of ImageNet-C at 5 severities, with a seed per image.

There are two tables of constants: for ImageNet-C (224 pixels) and for CIFAR-10-C and -100-C (32 pixels).
"""

from typing import Any

import numpy as np

from gpaco.data.corruption import distortions
from gpaco.data.images import Pixels
from gpaco.errors import UserError, nearest

KINDS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
CORRUPTIONS = tuple(name for kind in KINDS.values() for name in kind)
SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST = 32  # pixels that the definitions need
VERSION = 2  # of the corrupted images: results with another version are not reused

_WIDE = 80  # pixels; up to here a side is closer to 32 than to 224, as a ratio

# The functions with these names in distortions.py say what each number means.
CONSTANTS: dict[str, dict[str, tuple[Any, ...]]] = {
    "imagenet": {
        "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),
        "shot_noise": (60, 25, 12, 5, 3),
        "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),
        "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        "zoom_blur": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        "snow": (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        "frost": ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
        "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
        "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
        # The released script multiplies by 244, for images of 224 pixels.
        "elastic_transform": (
            (488, 170.8, 24.4, 224),
            (488, 19.52, 48.8, 224),
            (12.2, 2.44, 4.88, 224),
            (17.08, 2.44, 4.88, 224),
            (29.28, 2.44, 4.88, 224),
        ),
        "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
        "jpeg_compression": (25, 18, 15, 10, 7),
    },
    "cifar": {
        "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
        "shot_noise": (500, 250, 100, 75, 50),
        "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
        "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        "snow": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "frost": ((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
        "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
        "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
        "elastic_transform": (
            (0, 0, 2.56, 32),
            (1.6, 6.4, 2.24, 32),
            (2.56, 1.92, 1.92, 32),
            (3.2, 1.28, 1.6, 32),
            (3.2, 0.96, 0.96, 32),
        ),
        "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
        "jpeg_compression": (80, 65, 58, 50, 40),
    },
}


def corrupt(
    image: Pixels, name: str, severity: int, *, seed: int = 0, index: int = 0, constants: str | None = None
) -> Pixels:
    """Return a corrupted copy of an image (H, W, 3) uint8 with sides of at least 32 pixels.

    The result depends only on the arguments: it is the same in any process and in any order.

    Args:
        name: one of `CORRUPTIONS`.
        severity: 1 to 5.
        seed, index: seed of the whole set, and index of this image in it.
        constants: "imagenet" or "cifar"; by default chosen by the size of the image.

    >>> corrupt(np.full((32, 32, 3), 100, np.uint8), "brightness", 3)[0, 0].tolist()
    [138, 138, 138]
    """
    values = CONSTANTS[constants or constants_for(min(image.shape[:2]))][name][severity - 1]
    draw = np.random.default_rng([seed % 2**64, CORRUPTIONS.index(name), severity, index])
    return np.asarray(getattr(distortions, name)(image, values, draw))


def constants_for(side: int) -> str:
    """Return the table for a shorter side of this many pixels: that of 32 or 224, whichever is closer as a ratio."""
    return "cifar" if side <= _WIDE else "imagenet"


def corruption_names(words: str | None) -> tuple[str, ...]:
    """Return the corruptions in a comma-separated list of names or kinds; all of them for None.

    >>> corruption_names("fog,noise")
    ('gaussian_noise', 'shot_noise', 'impulse_noise', 'fog')
    """
    if words is None:
        return CORRUPTIONS
    wanted: set[str] = set()
    for word in (part.strip() for part in words.split(",")):
        if word not in CORRUPTIONS and word not in KINDS:
            raise UserError(
                f"there is no corruption {word!r}{nearest(word, [*CORRUPTIONS, *KINDS])}",
                f"choose from {', '.join(CORRUPTIONS)}, or {', '.join(KINDS)}",
            )
        wanted |= set(KINDS.get(word, (word,)))
    return tuple(name for name in CORRUPTIONS if name in wanted)
