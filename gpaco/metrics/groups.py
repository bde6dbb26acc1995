"""Groups of classes by number of training images, and measures of imbalance."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpaco.metrics.arrays import Ints
from gpaco.recipes.settings import Data

GROUPS = ("many", "medium", "few")
MANY, FEW = Data.many, Data.few  # the default limits


def groups(counts: ArrayLike, many: float = MANY, few: float = FEW) -> NDArray[np.str_]:
    """Return the group of each class (C,): "many" above `many` training images, "few" below `few`, else "medium".

    >>> groups([101, 100, 20, 19]).tolist()
    ['many', 'medium', 'medium', 'few']
    """
    counts = np.asarray(counts)
    return np.where(counts > many, "many", np.where(counts < few, "few", "medium"))


def imbalance_factor(counts: Ints) -> float | None:
    """Return the size of the largest class divided by that of the smallest nonempty one; None without images."""
    present = counts[counts > 0]
    return None if not len(present) else float(present.max() / present.min())


def gini(counts: ArrayLike) -> float:
    """Return how unequal class counts are: 0 if all are equal, near 1 if one class has nearly all images.

    Half the mean absolute difference of all pairs of classes, divided by their mean.

    >>> gini([5, 5, 5]), gini([0, 0, 0, 12])
    (0.0, 0.75)
    """
    ordered = np.sort(np.asarray(counts, np.float64))
    number, total = len(ordered), ordered.sum()
    if not total:
        return 0.0
    ranks = 2 * np.arange(1, number + 1) - number - 1
    return float((ranks * ordered).sum() / (number * total))


def one_group(counts: ArrayLike, many: float = MANY, few: float = FEW) -> str:
    """Return a note if classes of different sizes are all in one group, which makes groups useless; else "".

    It suggests limits for groups of about a third of the classes each.

    >>> one_group([3, 5, 8])
    'all 3 classes are few-shot; to divide them into groups: --set data.many=5 --set data.few=5'
    >>> one_group([3, 200]), one_group([500, 500, 500])
    ('', '')
    """
    found, ordered = set(groups(counts, many, few).tolist()), np.sort(np.asarray(counts)).tolist()
    third = len(ordered) // 3
    high, low = ordered[-third - 1], ordered[third]
    if len(found) != 1 or not ordered[0] < low <= high < ordered[-1]:
        return ""
    return (
        f"all {len(ordered)} classes are {found.pop()}-shot; "
        f"to divide them into groups: --set data.many={high} --set data.few={low}"
    )
