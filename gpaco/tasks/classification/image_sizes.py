"""The typical size and color of the images in a data set, from a sample."""

import numpy as np

from gpaco.data.images import BadImageError, size_of
from gpaco.data.samples import Samples

SMALL = 64  # pixels; photos are larger
_SAMPLED = 25  # images


def usual_side(samples: Samples) -> int:
    """Return the median of the shorter side in pixels; for files, from the headers of a few."""
    if samples.images is not None:
        return min(int(side) for side in samples.images.shape[1:3])
    sides = []
    for i in np.unique(np.linspace(0, len(samples) - 1, _SAMPLED).astype(int)).tolist():
        try:
            sides.append(min(size_of((samples.paths or ())[i])))
        except BadImageError:
            continue
    return int(np.median(sides)) if sides else 224


def is_gray(samples: Samples) -> bool:
    """Return whether the images are in memory and the first have no color; files are not decoded for it."""
    return samples.images is not None and not np.ptp(samples.images[:_SAMPLED], axis=-1).any()
