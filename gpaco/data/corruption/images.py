"""Images of any data set, clean or corrupted here; published corrupted sets are in published.py."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from gpaco.data.corruption.corruptions import CORRUPTIONS, SEVERITIES, SMALLEST, corrupt
from gpaco.data.corruption.published import CLEAN, Arrays, Condition, Tree
from gpaco.data.images import Pixels
from gpaco.data.samples import Labels, Samples
from gpaco.data.views.eval import as_tested
from gpaco.data.views.tested import TestView
from gpaco.errors import UserError


@dataclass(frozen=True)
class Corrupting:
    """How images are corrupted: for a model with this view, with these constants and this seed."""

    view: TestView
    constants: str
    seed: int


@dataclass(frozen=True, eq=False)
class Images:
    """Images as they are, or corrupted as in ImageNet-C: photographs after they are resized for the model.

    Small images that a model sees whole are corrupted at their own size, as in CIFAR-C.
    """

    samples: Samples
    reader: str
    corrupting: Corrupting | None = None

    @property
    def labels(self) -> Labels:
        return self.samples.labels

    @property
    def classes(self) -> tuple[str, ...]:
        return self.samples.classes

    @property
    def names(self) -> Sequence[str]:
        return self.samples.names

    @property
    def conditions(self) -> tuple[Condition, ...]:
        corrupted = ((name, severity) for name in CORRUPTIONS for severity in SEVERITIES)
        return (CLEAN,) if self.corrupting is None else (CLEAN, *corrupted)

    def load(self, condition: Condition, i: int) -> Pixels:
        how = self.corrupting
        if how is None:
            return self.samples.load(i)
        image = self.samples.load(i, 0 if how.view.whole else how.view.least)
        if condition == CLEAN or not how.view.whole:
            image = as_tested(image, how.view)
        if condition == CLEAN:
            return image
        return corrupted(image, lambda x: corrupt(x, *condition, seed=how.seed, index=i, constants=how.constants))


Source = Images | Tree | Arrays


def corrupted(image: Pixels, corruption: Callable[[Pixels], Pixels]) -> Pixels:
    """Apply a corruption that needs 32 x 32 pixels.

    A smaller image is enlarged first: each pixel becomes a square, and the outermost pixels are repeated up to 32 x 32.
    Afterwards the border is cropped and the squares are averaged. So an image that the corruption does not change comes
    back exactly, which interpolation cannot guarantee.
    """
    height, width = image.shape[:2]
    if min(height, width) >= SMALLEST:
        return corruption(image)
    times = SMALLEST // min(height, width)
    large = image.repeat(times, 0).repeat(times, 1)
    top, left = (max(SMALLEST - side, 0) // 2 for side in large.shape[:2])
    bottom, right = (max(SMALLEST - side, 0) - start for side, start in zip(large.shape, (top, left), strict=False))
    framed = np.pad(large, ((top, bottom), (left, right), (0, 0)), mode="edge")
    done = corruption(framed)[top : top + height * times, left : left + width * times]
    squares = done.reshape(height, times, width, times, 3)
    return np.asarray(np.rint(squares.mean((1, 3))), np.uint8)


def corrupted_side(samples: Samples, view: TestView) -> int:
    """Return the shorter side of images when they are corrupted, from the first readable one."""
    if not view.whole:
        return max(view.size, SMALLEST)
    for i in range(len(samples)):
        with suppress(UserError):
            return int(max(min(samples.load(i).shape[:2]), SMALLEST))
    raise UserError("no image could be read", "check the files")
