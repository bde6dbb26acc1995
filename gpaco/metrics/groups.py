"""Groups of classes by their number of training images, and how unequal those numbers are."""

import numpy as np
import numpy.typing as npt

from gpaco.metrics.classification import groups
from gpaco.recipes.settings import Data

MANY, FEW = Data.many, Data.few


def one_group(counts: npt.ArrayLike, many: float = MANY, few: float = FEW) -> str:
    """What to say where all classes are in one group although they differ, so that groups tell nothing; else "".

    Limits are named that make groups of about a third of the classes each.

    >>> one_group([3, 5, 8])
    'all 3 classes are few, so groups tell nothing; other limits: --set data.many=5 --set data.few=5'
    >>> one_group([3, 200]), one_group([500, 500, 500])
    ('', '')
    """
    found, ordered = set(groups(counts, many, few).tolist()), np.sort(np.asarray(counts)).tolist()
    third = len(ordered) // 3
    high, low = ordered[-third - 1], ordered[third]
    if len(found) != 1 or not ordered[0] < low <= high < ordered[-1]:
        return ""
    return (
        f"all {len(ordered)} classes are {found.pop()}, so groups tell nothing; "
        f"other limits: --set data.many={high} --set data.few={low}"
    )


def imbalance_factor(counts: npt.NDArray[np.int64]) -> float | None:
    """Size of the largest class divided by that of the smallest that has images."""
    present = counts[counts > 0]
    return None if not len(present) else float(present.max() / present.min())


def gini(counts: npt.ArrayLike) -> float:
    """How unequal class counts are: 0 if they are equal, near 1 if one class has nearly all.

    Half the mean absolute difference of all pairs of classes, divided by the mean.

    >>> gini([5, 5, 5]), gini([0, 0, 0, 12])
    (0.0, 0.75)
    """
    ordered = np.sort(np.asarray(counts, np.float64))
    number, total = len(ordered), ordered.sum()
    if not total:
        return 0.0
    ranks = 2 * np.arange(1, number + 1) - number - 1
    return float((ranks * ordered).sum() / (number * total))
