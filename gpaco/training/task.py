"""Protocols: what training needs from a task. Both tasks implement them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from gpaco.recipes.settings import Recipe
from gpaco.system.progress import Say
from gpaco.training.run import Run


class Before(NamedTuple):
    """What a stage takes over from the previous one."""

    weights: dict[str, Tensor]
    origin: str  # where the pretrained weights of the first stage came from


class Learner(Protocol):
    """One stage of training: a model, the source of its batches, and how a batch becomes a loss."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the stage, with tuned settings if there are any."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def extra(self) -> nn.Module:
        """Additional state that is saved with the run, such as a memory."""

    @property
    def steps(self) -> int:
        """Steps per epoch."""

    @property
    def card(self) -> Any:
        """A frozen dataclass, see training/card.py."""

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """Return the batches of this process for an epoch, from step `start` on."""

    def start(self, batch: Any) -> float:
        """Called once before the first step, with its first part; returns the shift of the balanced start."""

    def loss(self, network: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch; `network` is the model as wrapped by the loop."""

    def after_step(self) -> None:
        """Called after each optimizer step."""

    def validate(self, network: nn.Module) -> dict[str, Any]:
        """Return metrics on validation data; `score` selects the best epoch. Empty without data for selection."""


class Task(Protocol):
    """A recipe and its data, ready to train."""

    @property
    def recipe(self) -> Recipe:
        """The complete recipe, with all stages."""

    @property
    def splits(self) -> Any:
        """Data with `train` and `bad`, the images that were left out."""

    @staticmethod
    def check_model(name: str, weights: str) -> None:
        """Raise an error for an unknown model, or if the package with its weights is not installed."""

    @classmethod
    def prepare(cls, recipe: Recipe, given: set[str], folder: Path, device: torch.device, say: Say) -> Self:
        """Read the data and fill in unset settings of the recipe. `given` names the settings that the user chose."""

    def begin(self, stage: Recipe, folder: Path, before: Before | None) -> Learner:
        """Return a learner for one stage, in its own folder; `before` has the weights of the previous stage."""

    def finish(self, run: Run, learner: Any) -> None:
        """Evaluate the selected checkpoint, and write the metrics and everything that the page needs."""

    def with_recipe(self, recipe: Recipe) -> Self:
        """Return the same data with another recipe, without messages."""

    def sample(self) -> Self:
        """Return the same task with one batch of images, for a dry run."""
