"""What a method is made from, and the face that all methods have."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from gpaco.models.classifier import Classifier
    from gpaco.recipes.settings import MethodSettings


class Setup(NamedTuple):
    """Everything a method may need to know."""

    model: "Classifier"
    settings: "MethodSettings"
    num_classes: int
    class_counts: Tensor  # images per class as the sampler shows them
    dim: int
    views: int


class Method(nn.Module):
    """The face of a method; most of it does nothing."""

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        """The loss of a batch: `views` are (B, 3, H, W) each, `labels` (B,) or (B, C)."""
        raise NotImplementedError

    def start(self, model: "Classifier", views: list[Tensor], labels: Tensor) -> float:
        """Called once before the first step with a first batch; returns what it has added to the centers' biases."""
        return 0.0

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Called before every epoch of `epochs`: for methods that change over training."""

    def after_step(self, model: "Classifier") -> None:
        """Called when the optimizer has moved."""


def each_view(labels: Tensor, views: list[Tensor]) -> Tensor:
    """One label per row of logits: the labels once per view."""
    return labels.repeat(len(views), *[1] * (labels.dim() - 1))


@contextmanager
def trial(model: nn.Module) -> Iterator[None]:
    """Inside, the model may be run in training mode: without gradients, and its buffers are put back afterwards."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        yield
    model.load_state_dict(before, strict=False)
