"""The view of an image for testing: the whole image resized, or the center of the resized image."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpaco.data.samples import Samples
from gpaco.data.views.tested import TestView, sized
from gpaco.data.views.views import channels_first, resized_whole

Array = npt.NDArray[Any]


def as_tested(image: Array, view: TestView) -> Array:
    """Return the image (H, W, 3) uint8 as (size, size, 3)."""
    return sized(image, view, resized_whole)


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
