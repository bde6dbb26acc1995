"""The interface of all methods, and what they are built from."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gpaco.models.classifier import Classifier
from gpaco.recipes.settings import MethodSettings


class Setup(NamedTuple):
    """Everything a method may need when it is built."""

    model: Classifier
    settings: MethodSettings
    num_classes: int
    class_counts: Tensor  # images per class as the sampler shows them
    dim: int
    views: int


class Method(nn.Module):
    """The interface of a method. Only `forward` is required."""

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        """Return the loss of a batch: `views` are (B, 3, H, W) each, `labels` (B,) or (B, C)."""
        raise NotImplementedError

    def start(self, model: Classifier, views: list[Tensor], labels: Tensor) -> float:
        """Called once with the first batch, before the first step; returns the shift of the bias of the centers."""
        return 0.0

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Called before every epoch, for methods that change during training."""

    def after_step(self, model: Classifier) -> None:
        """Called after every optimizer step."""


def each_view(labels: Tensor, views: list[Tensor]) -> Tensor:
    """Return one label per row of logits: the labels repeated for each view."""
    return labels.repeat(len(views), *[1] * (labels.dim() - 1))


@contextmanager
def trial(model: nn.Module) -> Iterator[None]:
    """Run the model in training mode without gradients, and restore its buffers afterwards."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        yield
    model.load_state_dict(before, strict=False)
