"""Long-tailed subsets of balanced data."""

import numpy as np
import numpy.typing as npt

from gpaco.data.splitting import Indices, by_class
from gpaco.errors import UserError, nearest


def class_sizes(num_classes: int, largest: int, factor: float, profile: str = "exponential") -> list[int]:
    """How many images each class should have, classes in index order from the most frequent to the rarest.

    exponential: int(largest * factor ** (-c / (C - 1))). step: `largest` for the first half of the classes, largest /
    factor for the others. At least 1.

    >>> class_sizes(5, 500, 100), class_sizes(4, 500, 100, "step")
    ([500, 158, 50, 15, 5], [500, 500, 5, 5])
    """
    if factor < 1:
        raise UserError(f"a long tail needs an imbalance factor of at least 1, got {factor}", "100 is usual")
    if profile == "exponential":
        shares = [(1 / factor) ** (c / max(num_classes - 1, 1)) for c in range(num_classes)]
    elif profile == "step":
        shares = [1.0 if c < num_classes // 2 else 1 / factor for c in range(num_classes)]
    else:
        known = ("exponential", "step")
        raise UserError(f"unknown profile {profile!r}{nearest(profile, known)}", f"there are {' and '.join(known)}")
    return [max(int(largest * share), 1) for share in shares]


def long_tailed(labels: npt.ArrayLike, factor: float, *, profile: str = "exponential", seed: int = 0) -> Indices:
    """Indices of a subset whose largest class is `factor` times its smallest, class after class.

    The same images as in the CIFAR-LT of Cao et al., who shuffle each class in turn with NumPy's global generator.
    `largest` of the profile is the largest class there is; a class that has fewer images than the profile asks for
    gives all of them.
    """
    classes = by_class(labels)
    sizes = class_sizes(len(classes), max(map(len, classes)), factor, profile)
    generator = np.random.RandomState(seed)
    chosen = []
    for own, size in zip(classes, sizes, strict=True):
        generator.shuffle(own)
        chosen.append(own[:size])
    return np.concatenate(chosen)
