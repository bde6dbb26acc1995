"""The view of an image that a network is tested on: resized whole, or the center of the resized image."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpaco.data.samples import Samples
from gpaco.data.views.views import eval_batch, eval_photo


@dataclass(frozen=True)
class TestView:
    size: int
    resize: int
    whole: bool
    interpolation: str


def images_as_tested(samples: Samples, view: TestView, chunks: Sequence[NDArray[Any]]) -> Iterator[torch.Tensor]:
    """Of each chunk of indices the test-time images, (B, 3, S, S) uint8. Threads decode files, one chunk ahead."""
    if samples.images is not None and view.whole:
        for rows in chunks:
            yield eval_batch(samples.images[rows], view.size, view.interpolation)
        return
    with ThreadPoolExecutor(max(2, torch.get_num_threads())) as pool:

        def photo(i: int) -> NDArray[np.uint8]:
            return as_tested(samples.load(i), view)

        ahead: list[Any] = []
        for chunk in [*chunks, None]:
            if chunk is not None:
                ahead.append([pool.submit(photo, int(i)) for i in chunk])
            if ahead and (len(ahead) > 1 or chunk is None):
                stacked = np.stack([future.result() for future in ahead.pop(0)])
                yield torch.from_numpy(stacked).permute(0, 3, 1, 2).contiguous()


def as_tested(image: NDArray[np.uint8], view: TestView) -> NDArray[np.uint8]:
    """An image (H, W, 3) at the size of the model: whole if it was trained so, else the center of it."""
    if view.whole:
        whole = eval_batch(image[None], view.size, view.interpolation)[0]
        pixels: NDArray[np.uint8] = whole.permute(1, 2, 0).numpy()
        return pixels
    return eval_photo(image, view.size, view.resize, view.interpolation)
