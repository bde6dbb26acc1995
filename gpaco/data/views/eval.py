"""The view of an image that a network is tested on: resized whole, or the center of the resized image."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpaco.data.samples import Samples
from gpaco.data.views.views import channels_first, eval_photo, resized

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TestView:
    """How an image gets the size of a model."""

    size: int  # side of the result, in pixels
    resize: int  # the shorter side of the image before its center is cut out
    whole: bool  # resize all of the image instead, as for small images in memory
    interpolation: str  # "bilinear" or "bicubic"

    @property
    def least(self) -> int:
        """Pixels of the shorter side that the view uses."""
        return self.size if self.whole else self.resize


def as_tested(image: Array, view: TestView) -> Array:
    """Return the image (H, W, 3) uint8 as (size, size, 3)."""
    if view.whole:
        return resized(image, view.size, view.interpolation)
    return eval_photo(image, view.size, view.resize, view.interpolation)


def images_as_tested(samples: Samples, view: TestView, chunks: Sequence[Array]) -> Iterator[Tensor]:
    """Yield the images of each chunk of indices, (B, 3, size, size) uint8. Threads decode files one chunk ahead."""
    if samples.images is not None and view.whole:
        for rows in chunks:
            yield channels_first(np.stack([as_tested(image, view) for image in samples.images[rows]]))
        return
    with ThreadPoolExecutor(max(2, torch.get_num_threads())) as pool:

        def submitted(chunk: Array) -> list[Future[Array]]:
            return [pool.submit(lambda i: as_tested(samples.load(i, view.least), view), int(i)) for i in chunk]

        ahead = [submitted(chunk) for chunk in chunks[:1]]
        for k in range(len(chunks)):
            ahead += [submitted(chunk) for chunk in chunks[k + 1 : k + 2]]
            yield channels_first(np.stack([future.result() for future in ahead.pop(0)]))
