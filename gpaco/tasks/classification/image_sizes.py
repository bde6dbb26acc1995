"""The typical size and color of the images in a data set, from a sample."""

import numpy as np

from gpaco.data.images import BadImageError, size_of
from gpaco.data.samples import Samples
from gpaco.errors import UserError

SMALL = 64  # pixels; photos are larger
_SAMPLED = 25  # files


def usual_side(samples: Samples) -> int:
    """Return the median of the shorter side in pixels; for files, from the headers of a few."""
    if samples.images is not None:
        return min(int(side) for side in samples.images.shape[1:3])
    sides = []
    for i in _spread(samples):
        try:
            sides.append(min(size_of((samples.paths or ())[i])))
        except BadImageError:
            continue
    return int(np.median(sides)) if sides else 224


def has_color(samples: Samples) -> bool:
    """Return whether one of a few images has a pixel that is not gray."""
    for i in _spread(samples):
        try:
            image = samples.load(int(i)).astype(int)
        except UserError:
            continue
        if (image.max(2) != image.min(2)).any():
            return True
    return False


def _spread(samples: Samples) -> list[int]:
    found: list[int] = np.unique(np.linspace(0, len(samples) - 1, _SAMPLED).astype(int)).tolist()
    return found
