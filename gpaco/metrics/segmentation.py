"""Metrics of predicted masks, from one confusion matrix over the whole set.

The IoU of a class that is neither in the masks nor predicted is None and left out of every mean. Pixel counts are
summed over images and processes, so the metrics do not depend on how the work is split. C classes; 255 is unlabeled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpaco.errors import UserError
from gpaco.metrics.arrays import Floats, Ints, mean, number
from gpaco.metrics.groups import GROUPS, groups

IGNORE = 255
DRAWS, FEWEST = 1000, 5  # for intervals: number of resampled test sets, and of images needed


@dataclass
class Tally:
    """Pixel counts so far: `confusion` (C, C) with true classes in rows, and boundary pixels in both maps or either."""

    confusion: Ints
    boundary_both: Ints
    boundary_either: Ints

    @classmethod
    def empty(cls, num_classes: int) -> "Tally":
        zeros = np.zeros(num_classes, np.int64)
        return cls(np.zeros((num_classes, num_classes), np.int64), zeros, zeros.copy())

    def add(self, prediction: NDArray[Any], mask: NDArray[Any]) -> Ints:
        """Add an image, predicted and true classes (H, W); return its right, true and predicted pixels, (3, C)."""
        confusion = pixel_confusion(prediction, mask, len(self.confusion))
        self.confusion += confusion
        both, either = boundaries(prediction, mask, len(self.confusion))
        self.boundary_both += both
        self.boundary_either += either
        return np.stack([np.diag(confusion), confusion.sum(1), confusion.sum(0)])


def pixel_confusion(prediction: NDArray[Any], mask: NDArray[Any], num_classes: int) -> Ints:
    """Return the number of pixels of each class (row) predicted as each class (column), where `mask` is not 255.

    >>> pixel_confusion(np.array([[0, 1], [1, 1]]), np.array([[0, 0], [1, 255]]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    labeled = mask != IGNORE
    true, found = mask[labeled].astype(np.int64), prediction[labeled].astype(np.int64)
    if len(true) and max(true.max(), found.max()) >= num_classes:
        raise UserError(
            f"a mask or prediction has the class {max(true.max(), found.max())}, but there are {num_classes} classes",
            "`gpaco check DATA --task segmentation` names the file",
        )
    pairs = np.bincount(true * num_classes + found, minlength=num_classes**2)
    return pairs.reshape(num_classes, num_classes).astype(np.int64)


def boundaries(prediction: NDArray[Any], mask: NDArray[Any], num_classes: int) -> tuple[Ints, Ints]:
    """Return the pixels of each class near its edge in both maps, and in either: (C,) each (Cheng et al., 2021).

    "Near" means within 2% of the diagonal of the image; the image border is an edge too. Predictions for unlabeled
    pixels are ignored, so a perfect prediction scores 1.
    """
    import cv2

    labeled = mask != IGNORE
    prediction = np.where(labeled, prediction, IGNORE)
    reach = max(1, round(0.02 * float(np.hypot(*mask.shape))))
    kernel = np.ones((2 * reach + 1, 2 * reach + 1), np.uint8)

    def near_edge(classes: NDArray[Any]) -> NDArray[Any]:
        """Return where the window around a pixel has two classes or leaves the image: its extremes differ."""
        found = classes.astype(np.uint8)
        least = cv2.erode(found, kernel, borderType=cv2.BORDER_CONSTANT, borderValue=0)
        most = cv2.dilate(found, kernel, borderType=cv2.BORDER_CONSTANT, borderValue=255)
        return np.asarray((least != most) & labeled)

    def counted(classes: NDArray[Any]) -> Ints:
        return np.bincount(classes, minlength=num_classes)

    true, found = near_edge(mask), near_edge(prediction)
    both = counted(mask[true & found & (mask == prediction)])
    return both, counted(mask[true]) + counted(prediction[found]) - both


def image_iou(pixels: Ints | Floats) -> Floats:
    """Return IoUs (..., C) from right, true and predicted pixels (..., 3, C); NaN for a class that does not occur."""
    right, true, found = np.moveaxis(np.asarray(pixels, np.float64), -2, 0)
    union = true + found - right
    result: Floats = right / np.where(union > 0, union, np.nan)
    return result


def mean_ious(ious: Floats) -> Floats:
    """Return the mean over classes that occur, (...) from (..., C); NaN if none does."""
    there = np.isfinite(ious)
    result: Floats = np.where(there, ious, 0).sum(-1) / np.where(there.any(-1), there.sum(-1), np.nan)
    return result


def iou_intervals(pixels: Ints, group: NDArray[np.str_]) -> dict[str, dict[str, float | None]]:
    """Return 95% intervals of mean IoU over all classes and each group, by a Poisson bootstrap over images.

    `pixels` (N, 3, C) are right, true and predicted pixels of each image. There are 1,000 draws, and no interval if
    fewer than five images have pixels of these classes.
    """
    count = len(pixels)
    found: dict[str, dict[str, float | None]] = {key: {"low": None, "high": None} for key in ("miou", *GROUPS)}
    if count < FEWEST:
        return found
    weights = np.random.default_rng(0).poisson(1, (DRAWS, count)).astype(np.float64)
    drawn = image_iou((weights @ pixels.reshape(count, -1)).reshape(DRAWS, *pixels.shape[1:]))
    for key, bounds in found.items():
        chosen = (group == key) | (key == "miou")
        values = mean_ious(drawn[:, chosen])
        values = values[np.isfinite(values)]  # a draw may have no image with these classes
        if pixels[:, 1, chosen].any(1).sum() >= FEWEST:
            low, high = np.quantile(values, [0.025, 0.975])
            bounds |= {"low": float(low), "high": float(high)}
    return found


def share_groups(pixels: ArrayLike, many: float = 1.0, few: float = 0.1) -> NDArray[np.str_]:
    """Return the group of each class by its share of the training pixels, relative to the mean share 1 / C.

    "many" above `many` times the mean, "few" below `few` times, else "medium".

    >>> share_groups([800, 150, 40, 10], many=1.0, few=0.1).tolist()
    ['many', 'medium', 'medium', 'few']
    """
    pixels = np.asarray(pixels, np.float64)
    return groups(pixels * len(pixels) / max(pixels.sum(), 1), many, few)


def summarize(
    tally: Tally, pixels: ArrayLike, classes: Sequence[str], *, many: float = 1.0, few: float = 0.1
) -> dict[str, Any]:
    """Return all metrics of predicted masks, ready for JSON. `pixels` (C,) are those of the training set."""
    confusion, counts = tally.confusion, np.asarray(pixels)
    true, found, right = confusion.sum(1), confusion.sum(0), np.diag(confusion)
    each = image_iou(np.stack([right, true, found]))
    recall = right / np.where(true > 0, true, np.nan)
    edges = tally.boundary_both / np.where(tally.boundary_either > 0, tally.boundary_either, np.nan)
    group = share_groups(counts, many, few)
    return {
        "pixels": int(true.sum()),
        "miou": mean(each),
        "measured": int(np.isfinite(each).sum()),  # number of classes in mean IoU
        "pixel_accuracy": float(right.sum() / true.sum()) if true.sum() else None,
        "mean_accuracy": mean(recall),
        "boundary_iou": mean(edges),
        **{name: mean(each[group == name]) for name in GROUPS},
        "groups": {name: int((group == name).sum()) for name in GROUPS},
        "cuts": {"many": many, "few": few},
        "absent": int((true == 0).sum()),
        "per_class": [
            {
                "name": str(classes[c]),
                "group": str(group[c]),
                "train": int(counts[c]),
                "test": int(true[c]),
                "iou": number(each[c]),
                "recall": number(recall[c]),
                "precision": number(right[c] / found[c] if found[c] else np.nan),
                "boundary_iou": number(edges[c]),
            }
            for c in range(len(classes))
        ],
        "confusion": confusion.tolist(),
    }
