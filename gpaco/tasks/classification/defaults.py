"""Settings that suit the data: what training starts from where nothing was said."""

import math
from typing import Any

import numpy as np

from gpaco.data.images import BadImageError, describe_image
from gpaco.data.samples import Samples, Splits

_LOOKED_AT = 25  # files, for the usual size
_LONG = 10_000  # steps from which on small images are strongly augmented; docs/decisions.md says why


def suggest(
    splits: Splits, *, gpu: bool | None = None, batch_size: int | None = None, epochs: int | None = None
) -> dict[str, Any]:
    """Settings by "section.key": model, image size, batch size, epochs, memory, views and learning rate for these data.

    Decided by the usual size of the images, whether they are in memory, how many there are, and `gpu` (looked up
    unless given). Epochs and rate go with the batch size, views with the number of steps, if those are given already.
    """
    if gpu is None:
        import torch

        gpu = torch.cuda.is_available()
    images, side = len(splits.train), usual_side(splits.train)
    in_memory = splits.train.paths is None
    small = side <= 64
    if small:
        model = "resnet32" if gpu and side > 16 else "resnet8"
        size, most, steps = side, 128, 20_000 if gpu else 3_000
    else:
        model = "resnet50" if gpu else "resnet18"
        size, most, steps = min(224 if gpu else 128, side // 32 * 32), 64 if gpu else 32, 50_000 if gpu else 2_000
    batch_size = batch_size or min(most, max(8, _power_below(images / 16)))
    epochs = epochs or min(max(math.ceil(steps * batch_size / max(images, 1)), 10), 200)
    if small and (side <= 16 or epochs * images / batch_size < _LONG):
        first, second = "plain", "plain"
    else:
        first, second = ("cifar_regular", "cifar_aug") if in_memory else ("rand", "sim")
    return {
        "model.name": model,
        "model.size": size,
        "train.batch_size": batch_size,
        "train.epochs": epochs,
        "method.memory": min(8192, 2 ** round(math.log2(max(images, 1)))),
        "views.first": first,
        "views.second": second,
        "optimizer.lr": round((0.05 if small else 0.04) * batch_size / 128, 5),  # as released for CIFAR and ImageNet-LT
    }


def usual_side(samples: Samples) -> int:
    """The median of the shorter side in pixels; of files, a few are looked at."""
    if samples.images is not None:
        return min(int(side) for side in samples.images.shape[1:3])
    sides = []
    for i in np.unique(np.linspace(0, len(samples) - 1, _LOOKED_AT).astype(int)):
        try:
            facts = describe_image((samples.paths or ())[i])
        except BadImageError:
            continue
        sides.append(min(facts.width, facts.height))
    return int(np.median(sides)) if sides else 224


def _power_below(number: float) -> int:
    return 1 << max(int(number), 1).bit_length() - 1
