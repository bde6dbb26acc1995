"""The view of an image for testing: the whole image resized, or the center of the resized image."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gpaco.data.samples import Samples
from gpaco.data.views.tested import TestView, sized
from gpaco.data.views.views import channels_first, resized_whole
from gpaco.system.prefetch import prefetch

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

    def load(i: int) -> Array:
        return as_tested(samples.load(i, view.least), view)

    images = prefetch(load, (int(i) for rows in chunks for i in rows), ahead=max(map(len, chunks), default=0))
    for rows in chunks:
        yield channels_first(np.stack(list(islice(images, len(rows)))))
