"""What a classifier answers under each condition, clean or corrupted."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from gpaco.data.batches import loader
from gpaco.data.corruption.images import Source
from gpaco.data.corruption.published import Condition
from gpaco.data.views.eval import TestView, as_tested
from gpaco.data.views.views import channels_first
from gpaco.errors import UserError
from gpaco.system.progress import Progress
from gpaco.tasks.classification.predictor import Predictor

Choose = Callable[[NDArray[np.float32]], NDArray[np.int64]]  # logits (N, C) -> classes (N,)
Item = tuple[Condition, list[int]]  # a condition and indices of images
Errors = dict[int, UserError]  # by the place of the image among those indices


def answers_under(
    predictor: Predictor,
    source: Source,
    conditions: Sequence[Condition],
    indices: NDArray[np.int64],
    view: TestView,
    choose: Choose,
    *,
    skip: bool = False,
    workers: int = 0,
    show: Progress | None = None,
) -> Iterator[tuple[Condition, NDArray[np.int64], list[tuple[int, str]]]]:
    """Yield for each condition the class that the model gives each of `indices`, and the unreadable images.

    With `skip` an unreadable image has the class -1 and is listed with the reason; otherwise it is an error. Images
    are made by `workers` processes with one thread each, which on a CPU also run the model.
    """
    images, model = _Images(source, view), _Model(predictor, choose)
    on_cpu = predictor.mean.device.type == "cpu"
    size = 64 if on_cpu else 256  # on a CPU what stays in its cache
    chunks = [indices[k : k + size].tolist() for k in range(0, len(indices), size)]
    items = [(condition, chunk) for condition in conditions for chunk in chunks]
    loaded = _loaded(_Answers(images, model) if on_cpu else images, items, workers)
    done = 0
    for condition in conditions:
        parts, unreadable = [], []
        for chunk in chunks:
            found, errors = next(loaded)
            if isinstance(found, UserError):
                raise found
            if errors and not skip:
                raise next(iter(errors.values()))
            unreadable += [(chunk[place], error.cause) for place, error in errors.items()]
            classes = np.full(len(chunk), -1, np.int64)
            classes[[place for place in range(len(chunk)) if place not in errors]] = found if on_cpu else model(found)
            parts.append(classes)
            done += len(chunk)
            if show is not None:
                show(done, len(indices) * len(conditions))
        yield condition, np.concatenate(parts), unreadable


def _loaded(data: Dataset[Any], items: Sequence[Item], workers: int) -> Iterator[Any]:
    # OpenCV has one thread when the processes start: its threads do not survive in them, and they would hang.
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    batches = iter(loader(data, [[item] for item in items], _only, workers=workers))
    cv2.setNumThreads(threads)
    return batches


def _only(items: list[Any]) -> Any:
    return items[0]


@dataclass(frozen=True)
class _Model:
    predictor: Predictor
    choose: Choose

    def __call__(self, images: torch.Tensor) -> NDArray[np.int64]:
        if not len(images):
            return np.zeros(0, np.int64)
        with torch.inference_mode():
            return self.choose(self.predictor(images.to(self.predictor.mean.device)).float().cpu().numpy())


@dataclass(frozen=True)
class _Images(Dataset[tuple[torch.Tensor, Errors]]):
    """Images as the model sees them."""

    source: Source
    view: TestView

    def __getitem__(self, item: Item) -> tuple[torch.Tensor, Errors]:
        condition, indices = item
        images, errors = [], {}
        for place, i in enumerate(indices):
            try:
                images.append(as_tested(self.source.load(condition, i), self.view))
            except UserError as error:  # a worker that raises it would lose its remedy
                errors[place] = error
        return channels_first(np.stack(images)) if images else torch.zeros(0), errors


@dataclass(frozen=True)
class _Answers(Dataset[tuple[NDArray[np.int64] | UserError, Errors]]):
    """The classes that the model gives the readable images, or the error that it raises."""

    images: _Images
    model: _Model

    def __getitem__(self, item: Item) -> tuple[NDArray[np.int64] | UserError, Errors]:
        images, errors = self.images[item]
        try:
            return self.model(images), errors
        except UserError as error:
            return error, errors
