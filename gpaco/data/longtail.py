"""Long-tailed subsets of balanced data."""

import numpy as np
import numpy.typing as npt

from gpaco.data.holdout import Indices, by_class


def class_sizes(num_classes: int, largest: int, factor: float) -> list[int]:
    """Return the target number of images per class, in index order from the most frequent to the rarest.

    int(largest * factor ** (-c / (C - 1))), at least 1.

    >>> class_sizes(5, 500, 100)
    [500, 158, 50, 15, 5]
    """
    shares = [(1 / factor) ** (c / max(num_classes - 1, 1)) for c in range(num_classes)]
    return [max(int(largest * share), 1) for share in shares]


def long_tailed(labels: npt.ArrayLike, factor: float, *, seed: int = 0) -> Indices:
    """Return the indices of a subset whose largest class is `factor` times its smallest, class by class.

    With the images in the order of the official archive, these are the images of CIFAR-LT by Cao et al., who shuffle
    each class in turn with NumPy's global generator; in another order, it is another draw of the same sizes. The
    largest class is kept whole; a class with fewer images than its target keeps all of them.
    """
    classes = by_class(labels)
    sizes = class_sizes(len(classes), max(map(len, classes)), factor)
    generator = np.random.RandomState(seed)
    kept = []
    for own, size in zip(classes, sizes, strict=True):
        generator.shuffle(own)
        kept.append(own[:size])
    return np.concatenate(kept)
