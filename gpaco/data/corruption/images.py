"""The conditions that a model is tested under, clean or corrupted, and what it answers under each of them.

Pictures come from one of three sources: `Pictures` below, `Tree` and `Arrays` of data/shifted.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from gpaco.data.corruption.corruptions import CORRUPTIONS, SEVERITIES, SMALLEST, corrupt
from gpaco.data.corruption.published import CLEAN, Arrays, Condition, Pixels, Tree
from gpaco.data.samples import Labels, Samples
from gpaco.errors import UserError
from gpaco.system.progress import Progress
from gpaco.tasks.classification.evaluation import as_tested
from gpaco.training.run import Predictor

Answers = Callable[[NDArray[np.float32]], NDArray[np.int64]]  # logits (N, C) -> classes (N,)


@dataclass(frozen=True)
class Corrupting:
    """How pictures are corrupted: for a model (its `about`), with which constants, by which seed."""

    about: dict[str, Any]
    constants: str
    seed: int


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures as they are, or corrupted as ImageNet-C was made: photographs after they have the size of the model.

    Small pictures that a model sees whole are corrupted at their own size, as CIFAR-C was made.
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
    def names(self) -> tuple[str, ...]:
        return self.samples.names

    @property
    def conditions(self) -> tuple[Condition, ...]:
        corrupted = ((name, severity) for name in CORRUPTIONS for severity in SEVERITIES)
        return (CLEAN,) if self.corrupting is None else (CLEAN, *corrupted)

    def load(self, condition: Condition, i: int) -> Pixels:
        image, how = self.samples.load(i), self.corrupting
        if how is None:
            return image
        if condition == CLEAN or not how.about["whole"]:
            image = as_tested(image, how.about)
        if condition == CLEAN:
            return image
        name, severity = condition

        def change(picture: Pixels) -> Pixels:
            return corrupt(picture, name, severity, seed=how.seed, index=i, constants=how.constants)

        return corrupted(image, change)


Source = Pictures | Tree | Arrays


def corrupted(image: Pixels, corruption: Callable[[Pixels], Pixels]) -> Pixels:
    """The picture after a corruption that needs 32 x 32 pixels.

    A smaller one is enlarged before, each pixel to a square of them as far as 32 allows, the rest a border of the
    outermost pixels; afterwards the border goes and the squares are averaged. So it would come back as it was if
    nothing happened in between, which no way of interpolating can promise.
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


def picture_side(samples: Samples, about: dict[str, Any]) -> int:
    """The shorter side of a picture when it is corrupted."""
    side = min(samples.load(0).shape[:2]) if about["whole"] else int(about["size"])
    return max(side, SMALLEST)


def answers_under(
    predictor: Predictor,
    source: Source,
    conditions: Sequence[Condition],
    indices: NDArray[np.int64],
    view: dict[str, Any],
    answers: Answers,
    *,
    skip: bool = False,
    workers: int = 0,
    show: Progress | None = None,
) -> Iterator[tuple[Condition, NDArray[np.int64], list[tuple[int, str]]]]:
    """For one condition after the other: the class that the model gives each of `indices`, and the bad files.

    An image that cannot be read has the class -1 if it may be skipped, and is listed with the reason; else it is
    an error. Images are made by `workers` processes with one thread each, which on a CPU also run the model.
    """
    images, model = _Images(source, view), _Model(predictor, answers)
    on_cpu = predictor.mean.device.type == "cpu"
    size = 64 if on_cpu else 256  # on a CPU what stays in its cache
    chunks = [indices[k : k + size].tolist() for k in range(0, len(indices), size)]
    items = [(condition, chunk) for condition in conditions for chunk in chunks]
    batches = _answers_of_workers(images, model, items, workers) if on_cpu else _answers(images, model, items, workers)
    done = 0
    for condition in conditions:
        parts, bad = [], []
        for chunk in chunks:
            found, errors = next(batches)
            if errors and not skip:
                raise next(iter(errors.values()))
            bad += [(chunk[place], error.cause) for place, error in errors.items()]
            classes = np.full(len(chunk), -1, np.int64)
            classes[[place for place in range(len(chunk)) if place not in errors]] = found
            parts.append(classes)
            done += len(chunk)
            if show is not None:
                show(done, len(indices) * len(conditions))
        yield condition, np.concatenate(parts), bad


Item = tuple[Condition, list[int]]
Errors = dict[int, UserError]  # by the place of the image in its batch
Batch = tuple[NDArray[np.int64], Errors]  # classes of the images that could be read


def _answers_of_workers(images: "_Images", model: "_Model", items: Sequence[Item], workers: int) -> Iterator[Batch]:
    """The model runs in the processes that make the images."""
    for found, errors in _loaded(_Answers(images, model), items, workers):
        if isinstance(found, UserError):
            raise found
        yield found, errors


def _answers(images: "_Images", model: "_Model", items: Sequence[Item], workers: int) -> Iterator[Batch]:
    """The model runs here, on its device."""
    for found, errors in _loaded(images, items, workers):
        yield model(found), errors


def _loaded(data: Dataset[Any], items: Sequence[Item], workers: int) -> Iterator[Any]:
    loader: DataLoader[Any] = DataLoader(
        data,
        batch_size=None,
        sampler=items,
        num_workers=workers,
        collate_fn=_same,
        prefetch_factor=4 if workers else None,
    )
    # Before the processes start: the threads of OpenCV do not survive in them, and waiting for them would never end.
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    batches = iter(loader)
    cv2.setNumThreads(threads)
    return batches


@dataclass(frozen=True)
class _Model:
    predictor: Predictor
    answers: Answers

    def __call__(self, images: torch.Tensor) -> NDArray[np.int64]:
        if not len(images):
            return np.zeros(0, np.int64)
        with torch.inference_mode():
            return self.answers(self.predictor(images.to(self.predictor.mean.device)).float().cpu().numpy())


class _Images(Dataset[tuple[torch.Tensor, Errors]]):
    """Images as the model sees them, by condition and indices."""

    def __init__(self, source: Source, view: dict[str, Any]) -> None:
        self.source, self.view = source, view

    def __getitem__(self, item: Item) -> tuple[torch.Tensor, Errors]:
        condition, indices = item
        images, errors = [], {}
        for place, i in enumerate(indices):
            try:
                images.append(as_tested(self.source.load(condition, i), self.view))
            except UserError as error:  # a worker that raises it would lose its remedy
                errors[place] = error
        if not images:
            return torch.zeros(0), errors
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), errors


class _Answers(Dataset[tuple[NDArray[np.int64] | UserError, Errors]]):
    """What the model answers for these images; or the error that it raises."""

    def __init__(self, images: _Images, model: _Model) -> None:
        self.images, self.model = images, model

    def __getitem__(self, item: Item) -> tuple[NDArray[np.int64] | UserError, Errors]:
        images, errors = self.images[item]
        try:
            return self.model(images), errors
        except UserError as error:
            return error, errors


def _same(found: Any) -> Any:
    return found
