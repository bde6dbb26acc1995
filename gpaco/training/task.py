"""What training needs from a task, as protocols. Both tasks have methods of these names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from gpaco.recipes.settings import Recipe
from gpaco.system.progress import Say
from gpaco.training.run import Run


class Before(NamedTuple):
    """What a stage takes over from the one before it."""

    weights: dict[str, Tensor]
    origin: str  # where the pretrained weights of the first stage came from


class Learner(Protocol):
    """One stage of training: a model, where its batches come from, and how a batch becomes a loss."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def extra(self) -> nn.Module:
        """Further state that is saved with the run, such as a memory."""

    @property
    def steps(self) -> int:
        """Steps per epoch."""

    @property
    def card(self) -> Any:
        """A frozen dataclass, see training/card.py."""

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """Return the batches of this process from step `start` of an epoch on."""

    def start(self, batch: Any) -> float:
        """Called once before the first step; returns the shift of the balanced start."""

    def loss(self, network: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch; `network` is the model as the loop wraps it."""

    def after_step(self) -> None:
        """Called after each step of the optimizer."""

    def validate(self, network: nn.Module) -> dict[str, Any]:
        """Return metrics on validation data; `score` selects the best epoch. Empty if there is nothing to select on."""


class Task(Protocol):
    """A recipe and its data, ready to train."""

    @property
    def recipe(self) -> Recipe:
        """Complete, with all stages."""

    @property
    def splits(self) -> Any:
        """Data with `train` and `bad`, the images that were left out."""

    @staticmethod
    def check_model(name: str, weights: str) -> None:
        """Raise an error if there is no model of this name, or if its weights are in a package that is missing."""

    @classmethod
    def prepare(cls, recipe: Recipe, given: set[str], folder: Path, device: torch.device, say: Say) -> Self:
        """Read the data and fill in what the recipe leaves open. `given` names the settings that the user chose."""

    def begin(self, stage: Recipe, folder: Path, before: Before | None) -> Learner:
        """Return a learner for one stage, in its own folder; `before` has the weights of the stage before."""

    def finish(self, run: Run, learner: Any) -> None:
        """Evaluate the selected checkpoint and write the metrics and everything that the page needs."""

    def with_recipe(self, recipe: Recipe, say: Say) -> Self:
        """Return the same data with another recipe."""

    def sample(self) -> Self:
        """Return the same task with one batch of images, for a dry run."""
