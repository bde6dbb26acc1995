"""The predictions of a classifier under each condition, clean or corrupted."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from gpaco.data.batches import loader
from gpaco.data.corruption.images import Source
from gpaco.data.corruption.published import Condition
from gpaco.data.views.eval import as_tested
from gpaco.data.views.tested import TestView
from gpaco.data.views.views import channels_first
from gpaco.errors import Problem, UserError
from gpaco.system.progress import Progress, no_progress
from gpaco.tasks.classification.predictor import Predictor

Choose = Callable[[NDArray[np.float32]], NDArray[np.int64]]  # logits (N, C) -> classes (N,)
Errors = dict[int, UserError]  # by the position of the image in its chunk


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
    progress: Progress = no_progress,
) -> Iterator[tuple[Condition, NDArray[np.int64], list[tuple[int, str]]]]:
    """Yield the predicted classes of `indices` under each condition, and the unreadable images.

    With `skip`, an unreadable image has the class -1 and is listed with the reason; otherwise it is an error. Images
    are loaded by `workers` processes with one thread each, which on a CPU also run the model.
    """
    on_cpu = predictor.mean.device.type == "cpu"
    model = partial(_classes, predictor, choose)
    size = 64 if on_cpu else 256  # on a CPU, a batch should fit in the cache
    chunks = [indices[k : k + size].tolist() for k in range(0, len(indices), size)]
    items = [(condition, chunk) for condition in conditions for chunk in chunks]
    images = _Images(source, view, model if on_cpu else None)
    loaded = loader(images, [[item] for item in items], itemgetter(0), workers=workers)
    done = 0
    for condition in conditions:
        parts, unreadable = [], []
        for chunk in chunks:
            found, errors = next(loaded)
            if isinstance(found, Problem):
                raise found
            if errors and not skip:
                raise next(iter(errors.values()))
            unreadable += [(chunk[place], error.cause) for place, error in errors.items()]
            classes = np.full(len(chunk), -1, np.int64)
            classes[[place for place in range(len(chunk)) if place not in errors]] = found if on_cpu else model(found)
            parts.append(classes)
            done += len(chunk)
            progress(done, len(indices) * len(conditions))
        yield condition, np.concatenate([np.zeros(0, np.int64), *parts]), unreadable


def _classes(predictor: Predictor, choose: Choose, images: torch.Tensor) -> NDArray[np.int64]:
    if not len(images):
        return np.zeros(0, np.int64)
    with torch.inference_mode():
        return choose(predictor(images.to(predictor.mean.device)).float().cpu().numpy())


@dataclass(frozen=True)
class _Images(Dataset[tuple[Any, Errors]]):
    """Images as the model sees them; with `model`, its predictions for them, or the error that it raises."""

    source: Source
    view: TestView
    model: Callable[[torch.Tensor], NDArray[np.int64]] | None

    def __getitem__(self, item: tuple[Condition, list[int]]) -> tuple[Any, Errors]:
        condition, indices = item
        images, errors = [], {}
        for place, i in enumerate(indices):
            try:
                images.append(as_tested(self.source.load(condition, i), self.view))
            except UserError as error:  # raised in a worker, it would lose its remedy
                errors[place] = error
            except Problem as error:
                return error, errors
        stacked = channels_first(np.stack(images)) if images else torch.zeros(0)
        if self.model is None:
            return stacked, errors
        try:
            return self.model(stacked), errors
        except Problem as error:
            return error, errors
