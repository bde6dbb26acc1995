"""The interface of all methods, and functions that they share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.models.classifier import Classifier
from gpaco.models.gaussian import Blocks
from gpaco.recipes.settings import MethodSettings


class Setup(NamedTuple):
    """Everything a method may need when it is built."""

    model: Classifier
    settings: MethodSettings
    num_classes: int
    class_counts: Tensor  # images per class as the sampler shows them
    dim: int
    views: int
    train_counts: Tensor  # images per class in the data, 0 for a class without any


class Method(nn.Module):
    """The interface of a method. Only `forward` is required."""

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        """Return the loss of a batch: `views` are (B, 3, H, W) each, `labels` (B,) or (B, C)."""
        raise NotImplementedError

    def prepare(self, model: Classifier, train: Blocks, val: Blocks | None) -> None:
        """Called once before training, with the features of images in the test view.

        Args:
            val: features of validation data; None if there is no data for selection.
        """

    def start(self, model: Classifier, views: list[Tensor], labels: Tensor) -> float:
        """Called once with the first batch, before the first step; returns the shift of the bias of the centers."""
        return 0.0

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Called before every epoch, for methods that change during training."""

    def after_step(self, model: Classifier) -> None:
        """Called after every optimizer step."""


class LogitMethod(Method):
    """A method whose loss needs only the logits and labels of all views. Cross entropy, unless it has its own."""

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        logits, _ = model(*views)
        return self.loss(logits.float(), each_view(labels, views))

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (N, C) and labels (N,) or (N, C)."""
        return F.cross_entropy(logits, labels)


def each_view(labels: Tensor, views: list[Tensor]) -> Tensor:
    """Return one label per row of logits: the labels repeated for each view."""
    return labels.repeat(len(views), *[1] * (labels.dim() - 1))


def as_rows(labels: Tensor, like: Tensor) -> Tensor:
    """Return labels as rows (N, C) with the type of `like`, whose last dimension is C, without a device sync."""
    if labels.dim() == 2:
        return labels.to(like)
    return like.new_zeros(len(labels), like.shape[-1]).scatter_(1, labels[:, None], 1)


def class_means(blocks: Blocks, num_classes: int, num_features: int) -> tuple[Tensor, Tensor]:
    """Return the mean features of each class, (C, F), 0 for a class without images; and its number of images."""
    sums = torch.zeros(num_classes, num_features, dtype=torch.float64)
    counts = torch.zeros(num_classes, dtype=torch.float64)
    for features, labels in blocks():
        sums.index_add_(0, labels.cpu(), features.cpu().double())
        counts += torch.bincount(labels.cpu(), minlength=num_classes)
    return (sums / counts.clamp_min(1)[:, None]).float(), counts


@contextmanager
def trial(model: nn.Module) -> Iterator[None]:
    """Run the model in training mode without gradients, and restore its buffers afterward."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.no_grad():
            yield
    finally:
        model.load_state_dict(before, strict=False)
