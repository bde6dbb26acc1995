"""Batches: the order of images, and their views. There is no loader state.

The order is a function of (seed, epoch), a view of (seed, epoch, index, view). So a run can resume at any step, with
any number of workers and processes, and see the same images.
"""

import multiprocessing
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gpaco.data.counter_random import permutation, uniforms
from gpaco.data.samples import Samples
from gpaco.data.views.erasing import DRAWS_OF_ERASING, erase_
from gpaco.data.views.views import View, batch_view, normalize, photo_view
from gpaco.errors import Problem
from gpaco.system.signals import held_signals, ignore_signals

CPU = torch.device("cpu")

Indices = NDArray[np.int64]
Plan = list[tuple[Indices, Indices]]  # for each batch the indices of its images and the keys of their views


@dataclass(frozen=True)
class Batch:
    """Views of the same images, each (B, 3, S, S), and their labels (B,), or (B, C) once images are mixed."""

    views: list[Tensor]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def chunks(self, parts: int) -> list[Self]:
        """Split the batch into `parts` parts, or into single rows if there are fewer, for gradient accumulation.

        Not with `chunk`, which would give some processes fewer parts than others.
        """
        labels, *views = (tensor.tensor_split(min(parts, len(self))) for tensor in (self.labels, *self.views))
        return [type(self)(list(v), y) for v, y in zip(zip(*views, strict=True), labels, strict=True)]

    def to(self, device: torch.device) -> Self:
        views = [view.to(device, non_blocking=True) for view in self.views]
        return type(self)(views, self.labels.to(device, non_blocking=True))


def class_shares(counts: Indices, sampler: str) -> NDArray[np.float64]:
    """Return how often a sampler shows each class, (C,), summing to 1.

    "shuffle": as in the data. "balanced": equally often. "sqrt": in proportion to the square root of the class sizes.
    "reversed": in inverse proportion to the class sizes.

    >>> class_shares(np.array([90, 10]), "sqrt").tolist()
    [0.75, 0.25]
    """
    reversed_ = (counts > 0) / np.maximum(counts, 1)
    weights = {"shuffle": counts, "balanced": counts > 0, "sqrt": np.sqrt(counts), "reversed": reversed_}[sampler]
    return np.asarray(weights / weights.sum())


def shown_counts(counts: Indices, sampler: str) -> NDArray[np.float64]:
    """Return the number of images of each class that a sampler shows in an epoch, (C,).

    A class that is never shown counts as one image, or as the rarest class if that is less: methods take logarithms,
    and with a much smaller number its logit would drift up in training, since nothing else holds it down.

    >>> shown_counts(np.array([6, 3, 0]), "balanced").tolist()
    [4.5, 4.5, 1.0]
    """
    shown: NDArray[np.float64] = class_shares(counts, sampler) * counts.sum()
    return np.where(counts > 0, shown, min(1.0, float(shown[counts > 0].min())))


def epoch_order(labels: Indices, sampler: str, seed: int, epoch: int) -> tuple[Indices, Indices]:
    """Return the indices of an epoch in order, and how often each has already occurred in the epoch."""
    n = len(labels)
    if sampler == "shuffle":
        return permutation(seed, epoch, n), np.zeros(n, np.int64)
    counts = np.bincount(labels)
    shares = class_shares(counts, sampler)
    # Every class is drawn in proportion to its share: equally spaced places with a random start, so that the number in
    # an epoch is that share rounded up or down, and right on average over epochs. The images of a class are in shuffled
    # order, so that all of them are used before one is repeated.
    shuffled = permutation(seed, epoch, n)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    first = np.cumsum(counts) - counts
    start = uniforms(seed, epoch, np.array([-1]), -1, 1)[0]  # keys of no image and no view
    drawn = np.searchsorted(np.cumsum(shares), (np.arange(n) + start) / n, side="right").clip(max=len(counts) - 1)
    rank = np.arange(n) - np.searchsorted(drawn, drawn)  # within its class
    order = by_class[first[drawn] + rank % counts[drawn]]
    mixed = permutation(seed + 1, epoch, n)
    return order[mixed], (rank // counts[drawn])[mixed]


def steps_per_epoch(n: int, batch_size: int) -> int:
    """Return the number of full batches in an epoch, at least 1; an epoch leaves out the rest."""
    return max(n // batch_size, 1)


def plan(
    labels: Indices,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    sampler: str = "shuffle",
    second: str = "",
    start: int = 0,
    rank: int = 0,
    world: int = 1,
) -> Plan:
    """Return the plan of an epoch from step `start` on.

    With a `second` sampler, every batch is twice as large: its odd rows come from that sampler, as another function of
    (seed, epoch).

    Of each global batch, this process gets every `world`-th row, starting at `rank`. An image that occurs twice in an
    epoch has two keys, and so different views.
    """
    order, again = epoch_order(labels, sampler, seed, epoch)
    keys = order + len(labels) * again
    steps = steps_per_epoch(len(labels), batch_size)
    rows = [slice(step * batch_size + rank, (step + 1) * batch_size, world) for step in range(start, steps)]
    first = [(order[row], keys[row]) for row in rows]
    if not second:
        return first
    order, again = epoch_order(labels, second, seed + 2, epoch)
    keys = order + len(labels) * (again + len(labels))  # different views than with the first sampler
    return [
        (_alternate(one, order[row]), _alternate(key, keys[row])) for (one, key), row in zip(first, rows, strict=True)
    ]


def _alternate(one: Indices, other: Indices) -> Indices:
    return np.stack([one, other], 1).ravel()


def batches(
    samples: Samples,
    views: list[View],
    *,
    seed: int,
    epoch: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    workers: int = 0,
    erase: float = 0.0,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    accumulate: int = 1,
    start: int = 0,
    device: torch.device = CPU,
    rank: int = 0,
    **order: Any,
) -> Iterator[Batch]:
    """Yield the batches that `plan` gives for one epoch, from step `start` on.

    `erase` is the probability that a rectangle of a view becomes noise; `mixup` and `cutmix` are as in `mix`, drawn
    separately for each of the `accumulate` parts of a batch and in each process. Pixels go to the `device` as bytes, a
    quarter of the size of floats.
    """
    planned = plan(samples.labels, seed=seed, epoch=epoch, start=start, rank=rank, **order)
    labels = torch.from_numpy(samples.labels)
    pin = device.type == "cuda"
    pixels = views_of(samples, views, planned, seed=seed, epoch=epoch, workers=workers, pin=pin)
    for step, ((indices, keys), batch) in enumerate(zip(planned, pixels, strict=True), start):
        ready = [normalize(view.to(device, non_blocking=True), mean, std) for view in batch]
        if erase:
            for v, images in enumerate(ready):
                erase_(images, erase, uniforms(seed, epoch, keys, -2 - v, DRAWS_OF_ERASING))
        shown = Batch(ready, labels[indices])
        if mixup or cutmix:
            parts = [
                mix(part, mixup, cutmix, len(samples.classes), (seed, epoch, step, rank, number))
                for number, part in enumerate(shown.chunks(accumulate))
            ]
            together = [torch.cat(views) for views in zip(*(part.views for part in parts), strict=True)]
            shown = Batch(together, torch.cat([part.labels for part in parts]))
        yield shown


def views_of(
    samples: Samples, views: list[View], planned: Plan, *, seed: int, epoch: int, workers: int = 0, pin: bool = False
) -> Iterator[list[Tensor]]:
    """Yield the views of each planned batch, each (B, 3, S, S) uint8; with `pin`, those of files in pinned memory."""
    if samples.images is not None:
        for indices, keys in planned:
            images = samples.images[indices]
            yield [batch_view(images, view, uniforms(seed, epoch, keys, v, view.draws)) for v, view in enumerate(views)]
        return
    items = (list(zip(indices.tolist(), keys.tolist(), strict=True)) for indices, keys in planned)
    yield from raised(loader(_Photos(samples, views, seed, epoch), items, _stack, workers=workers, pin=pin))


def loader(
    data: Dataset[Any],
    batches: Iterable[list[Any]],
    collate: Callable[[list[Any]], Any],
    *,
    workers: int,
    ahead: int = 4,
    pin: bool = False,
) -> Iterator[Any]:
    """Return an iterator over these batches of items; each worker prefetches up to `ahead` batches.

    Workers start immediately. They ignore the signals that stop a run: the main process handles them, and still needs
    the workers for the batch of its last step. It kills workers that do not end when told to.
    """
    made = DataLoader(
        data,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=collate,
        worker_init_fn=_start_worker,
        prefetch_factor=ahead if workers else None,
        pin_memory=pin,
        generator=torch.Generator(),  # do not advance the global one: random initial weights depend on it
    )
    before = set(multiprocessing.active_children())
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)  # a forked process lacks OpenCV's other threads, and could wait forever for a lock of theirs
    with held_signals():
        loaded = iter(made)
    cv2.setNumThreads(threads)
    weakref.finalize(loaded, _kill, set(multiprocessing.active_children()) - before)
    return loaded


def _start_worker(worker: int) -> None:
    ignore_signals()
    sys.excepthook = _report_unless_left


def _report_unless_left(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print no traceback if the main process ended while multiprocessing's thread was passing it a batch."""
    if not isinstance(error, EOFError | ConnectionError):
        sys.__excepthook__(kind, error, traceback)


def _kill(workers: Iterable[Any]) -> None:
    for worker in workers:
        worker.kill()
        worker.join()


def raised(loaded: Iterable[Any]) -> Iterator[Any]:
    """Yield what was loaded; raise an error if a worker returned one."""
    for batch in loaded:
        if isinstance(batch, Problem):
            raise batch
        yield batch


Photo = list[NDArray[np.uint8]]  # its views


class _Photos(Dataset[Photo | Problem]):
    """Files, decoded once for all views. Errors are returned: one raised in a worker would lose its attributes."""

    def __init__(self, samples: Samples, views: list[View], seed: int, epoch: int) -> None:
        self.samples, self.views, self.seed, self.epoch = samples, views, seed, epoch

    def __getitem__(self, item: tuple[int, int]) -> Photo | Problem:
        index, key = item
        try:
            image = self.samples.load(index, max(view.least for view in self.views))
        except Problem as error:
            return error
        views, keys = enumerate(self.views), np.array([key])
        return [photo_view(image, view, uniforms(self.seed, self.epoch, keys, v, view.draws)[0]) for v, view in views]


def _stack(items: list[Photo | Problem]) -> list[Tensor] | Problem:
    views = stacked(items)
    return views if isinstance(views, Problem) else [torch.from_numpy(view).permute(0, 3, 1, 2) for view in views]


def stacked(items: Sequence[Sequence[NDArray[np.uint8]] | Problem]) -> list[NDArray[np.uint8]] | Problem:
    """Stack the first parts of all items, their second parts, and so on; or return the first error."""
    for item in items:
        if isinstance(item, Problem):
            return item
    return [np.stack(part) for part in zip(*items, strict=True)]


def mix(batch: Batch, mixup: float, cutmix: float, num_classes: int, seed: Sequence[int]) -> Batch:
    """Return the batch with each image and label mixed with those of another image, the same way in all views.

    `mixup` and `cutmix` are the parameters of their Beta distributions; 0 turns one of them off, and with both, one is
    drawn at random. As in timm, one share is drawn for the whole batch, the first image is mixed with the last, the
    second with the second-to-last and so on (the middle one of an odd number with itself), and the center of a cutmix
    box is anywhere in the image: the box is clipped at the border.
    """
    draw = np.random.default_rng(seed)
    cut = bool(cutmix) and (not mixup or draw.random() < 0.5)
    strength = cutmix if cut else mixup
    share = float(draw.beta(strength, strength))
    rows = torch.nn.functional.one_hot(batch.labels, num_classes).float()
    if cut:
        height, width = batch.views[0].shape[2:]
        (top, bottom), (left, right) = (_side(draw, side, share) for side in (height, width))
        share = 1 - (bottom - top) * (right - left) / (height * width)
        views = [view.clone() for view in batch.views]
        for mixed, view in zip(views, batch.views, strict=True):
            mixed[:, :, top:bottom, left:right] = view.flip(0)[:, :, top:bottom, left:right]
    else:
        views = [torch.lerp(view.flip(0), view, share) for view in batch.views]
    return Batch(views, torch.lerp(rows.flip(0), rows, share))


def _side(draw: np.random.Generator, side: int, share: float) -> tuple[int, int]:
    """Return where a cutmix box starts and ends along one side of an image that keeps this share."""
    half, center = int(side * (1 - share) ** 0.5) // 2, int(draw.integers(side))
    return max(center - half, 0), min(center + half, side)
