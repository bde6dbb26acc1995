"""Batches of training crops. There is no loader state: order and crops are functions of (seed, epoch, index)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from gpaco.data.batches import CPU, in_parts, loader, raised, stacked, steps_per_epoch
from gpaco.data.counter_random import permutation, uniforms
from gpaco.data.views.views import normalize
from gpaco.errors import Problem
from gpaco.tasks.segmentation.scenes import Scenes
from gpaco.tasks.segmentation.transforms import DRAWS, Size, training_crop


@dataclass(frozen=True)
class SceneBatch:
    """Normalized images (B, 3, h, w) and masks (B, h, w) of classes, 255 for none."""

    images: Tensor
    masks: Tensor

    def __len__(self) -> int:
        return len(self.masks)

    def chunks(self, parts: int) -> list[Self]:
        """Return the batch in parts, for accumulation."""
        return [type(self)(x, y) for x, y in zip(*in_parts(parts, self.images, self.masks), strict=True)]

    def to(self, device: torch.device) -> Self:
        return type(self)(self.images.to(device, non_blocking=True), self.masks.to(device, non_blocking=True))


@dataclass(frozen=True)
class Crops:
    """How training crops are made; see `training_crop`."""

    crop: Size
    base_size: Size
    scale: tuple[float, float] = (0.5, 2.0)
    max_share: float = 0.75
    colors: bool = True
    fill: tuple[int, int, int] = (124, 116, 104)


def batches(
    scenes: Scenes,
    crops: Crops,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    workers: int = 0,
    device: torch.device = CPU,
) -> Iterator[SceneBatch]:
    """Yield the batches of one epoch for one of `world` processes, from step `start` on, full ones only.

    Where a batch has more images than there are scenes, scenes repeat in different crops.
    """
    shape = (steps_per_epoch(len(scenes), batch_size), batch_size)
    places = np.arange(shape[0] * shape[1])
    keys = permutation(seed, epoch, len(scenes))[places % len(scenes)] + places // len(scenes) * len(scenes)
    mine = keys.reshape(shape)[start:, rank::world]
    data, pin = _Crops(scenes, crops, seed, epoch), device.type == "cuda"
    loaded = loader(data, [row.tolist() for row in mine], _stack, workers=workers, ahead=2, pin=pin)
    for pixels, masks in raised(loaded):
        yield SceneBatch(normalize(pixels.to(device, non_blocking=True), mean, std), masks)


Crop = tuple[NDArray[np.uint8], NDArray[np.uint8]]


class _Crops(Dataset[Crop | Problem]):
    """Training crops by their keys: index + scenes * times that it came before in the epoch.

    An unreadable file gives its error: raised by a worker it loses parts.
    """

    def __init__(self, scenes: Scenes, crops: Crops, seed: int, epoch: int) -> None:
        self.scenes, self.crops, self.seed, self.epoch = scenes, crops, seed, epoch

    def __getitem__(self, key: int) -> Crop | Problem:
        try:
            image, mask = self.scenes.load(key % len(self.scenes))
        except Problem as error:
            return error
        u = uniforms(self.seed, self.epoch, np.array([key]), 0, DRAWS)[0]
        return training_crop(image, mask, u, **vars(self.crops))


def _stack(items: list[Crop | Problem]) -> tuple[Tensor, Tensor] | Problem:
    parts = stacked(items)
    if isinstance(parts, Problem):
        return parts
    images, masks = parts
    return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(masks).long()
