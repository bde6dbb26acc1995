"""Batches of training crops. There is no loader state: order and crops are functions of (seed, epoch, index)."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from gpaco.data.batches import CPU, Batch, loader, raised, stacked, steps_per_epoch
from gpaco.data.counter_random import permutation, uniforms
from gpaco.data.views.views import normalize
from gpaco.errors import Problem
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.tasks.segmentation.card import Card
from gpaco.tasks.segmentation.scenes import Scenes
from gpaco.tasks.segmentation.transforms import DRAWS, training_crop


def batches(
    scenes: Scenes, recipe: Recipe, card: Card, *, epoch: int, start: int = 0, device: torch.device = CPU
) -> Iterator[Batch]:
    """Yield this process's part of the full batches of one epoch, from step `start` on.

    A batch has one view, normalized images (B, 3, h, w), and masks (B, h, w) of classes as labels, 255 for no class. If
    a batch is larger than the number of scenes, scenes repeat in different crops.
    """
    train, count = recipe.train, len(scenes)
    shape = (steps_per_epoch(count, train.batch_size), train.batch_size)
    places = np.arange(shape[0] * shape[1])
    keys = permutation(train.seed, epoch, count)[places % count] + places // count * count
    mine = keys.reshape(shape)[start:, distributed.rank() :: distributed.world_size()]
    data, pin = _Crops(scenes, recipe, card, epoch), device.type == "cuda"
    loaded = loader(data, [row.tolist() for row in mine], _stack, workers=train.workers, ahead=2, pin=pin)
    for pixels, masks in raised(loaded):
        yield Batch([normalize(pixels.to(device, non_blocking=True), card.mean, card.std)], masks)


Crop = tuple[NDArray[np.uint8], NDArray[np.uint8]]


class _Crops(Dataset[Crop | Problem]):
    """Training crops by key: index + scenes * number of earlier occurrences in the epoch.

    Errors are returned: one raised in a worker would lose its attributes.
    """

    def __init__(self, scenes: Scenes, recipe: Recipe, card: Card, epoch: int) -> None:
        self.scenes, self.epoch = scenes, epoch
        self.seed, self.settings = recipe.train.seed, recipe.segmentation
        self.fill = [round(255 * value) for value in card.mean]

    def __getitem__(self, key: int) -> Crop | Problem:
        try:
            image, mask = self.scenes.load(key % len(self.scenes))
        except Problem as error:
            return error
        u = uniforms(self.seed, self.epoch, np.array([key]), 0, DRAWS)[0]
        return training_crop(image, mask, u, self.settings, self.fill)


def _stack(items: list[Crop | Problem]) -> tuple[Tensor, Tensor] | Problem:
    parts = stacked(items)
    if isinstance(parts, Problem):
        return parts
    images, masks = parts
    return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(masks).long()
