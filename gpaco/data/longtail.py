"""Long-tailed subsets of balanced data."""

import numpy as np
import numpy.typing as npt

from gpaco.data.holdout import Indices, by_class


def class_sizes(num_classes: int, largest: int, factor: float) -> list[int]:
    """How many images each class should have, classes in index order from the most frequent to the rarest.

    int(largest * factor ** (-c / (C - 1))), at least 1.

    >>> class_sizes(5, 500, 100)
    [500, 158, 50, 15, 5]
    """
    shares = [(1 / factor) ** (c / max(num_classes - 1, 1)) for c in range(num_classes)]
    return [max(int(largest * share), 1) for share in shares]


def long_tailed(labels: npt.ArrayLike, factor: float, *, seed: int = 0) -> Indices:
    """Indices of a subset whose largest class is `factor` times its smallest, class after class.

    The same images as in the CIFAR-LT of Cao et al., who shuffle each class in turn with NumPy's global generator, if
    the images are in the order of the official archive; in another order it is another draw of the same sizes.
    `largest` is the largest class there is; a class that has fewer images than it should gives all of them.
    """
    classes = by_class(labels)
    sizes = class_sizes(len(classes), max(map(len, classes)), factor)
    generator = np.random.RandomState(seed)
    kept = []
    for own, size in zip(classes, sizes, strict=True):
        generator.shuffle(own)
        kept.append(own[:size])
    return np.concatenate(kept)
