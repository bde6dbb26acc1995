"""A run that starts with one process, resumes with two, then four, then one, in float64 and without batch norm."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from helpers.ranks import Results, run_ranks
from torch import nn

from faults.promise import Promise, scratch
from faults.runs import dice_of
from gpaco.data.batches import Batch
from gpaco.recipes.request import requested
from gpaco.system import distributed
from gpaco.system.signals import Stopped
from gpaco.tasks.classification.learner import ClassificationLearner
from gpaco.tasks.classification.task import Classification
from gpaco.training import checkpoint
from gpaco.training.loop import fit

WORLDS = (1, 2, 4, 1)
SETTINGS = ("method.contrast=global", "method.memory=64", "views.first=plain", "views.second=plain")
FLAGS = {"long_tail": 50, "epochs": 2, "batch_size": 64, "model": "resnet8", "method": "gpaco", "validation": 0.0}


class Precise(ClassificationLearner):
    """A classifier in float64."""

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        for batch in super().batches(epoch, start):
            yield Batch([view.double() for view in batch.views], batch.labels)


def without_batch_norm(module: nn.Module) -> nn.Module:
    """The module with layer norm in place of batch norm, whose statistics depend on the share of a process."""
    for name, child in module.named_children():
        norm = isinstance(child, nn.BatchNorm2d)
        setattr(module, name, nn.GroupNorm(1, child.num_features) if norm else without_batch_norm(child))
    return module


def digits(folder: Path, seed: int, *settings: str, **flags: Any) -> ClassificationLearner:
    """A learner of digits as the command makes it."""
    recipe, given = requested("digits", None, [*SETTINGS, *settings], FLAGS | {"seed": seed} | flags, paper=False)
    task = Classification.prepare(recipe, given, folder, torch.device("cpu"), lambda line: None)
    return task.begin(task.recipe, folder, None)


def part(folder: Path, seed: int, last: int | None) -> Results:
    """Train in this process as one of several, from the last checkpoint, to some step of all or to the end."""
    made = digits(folder, seed)
    model: Any = without_batch_norm(made.model).double()
    learner = Precise(made.recipe, made.splits, model, made.card, made.source, select=False)
    learner.extra.double()

    def show(row: dict[str, Any]) -> None:
        here = "step" in row and row["epoch"] * learner.steps + row["step"] == last
        if here and distributed.rank() == distributed.world_size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        fit(learner, folder, torch.device("cpu"), show)
    except Stopped:
        return {"stopped": torch.tensor(1)}
    return {"stopped": torch.tensor(0)}


def attempt(number: int, home: Path) -> int:
    dice = dice_of("world", number)
    with scratch(home, number) as folder:
        (folder / "whole").mkdir()
        (folder / "parts").mkdir()
        run_ranks(1, partial(part, folder / "whole", number, None))
        whole = checkpoint.load(folder / "whole" / "checkpoints")
        stops = [*sorted(dice.sample(range(1, whole.step - 2, 3), 3)), None]  # a signal is acted on one step later
        for world, last in zip(WORLDS, stops, strict=True):
            (stopped, *_) = run_ranks(world, partial(part, folder / "parts", number, last))
            assert stopped["stopped"] == (last is not None)
        other = checkpoint.load(folder / "parts" / "checkpoints")
        assert other.step == whole.step
        for name in ("model", "optimizer", "extra"):  # the memory, its pointer and the share of the centers too
            for key, value in whole.tensors[name].items():
                found = other.tensors[name][key]
                assert value.dtype == found.dtype
                torch.testing.assert_close(found, value, rtol=1e-10, atol=1e-10)
    return len(WORLDS) - 1


PROMISE = Promise(
    "Resumed with another number of processes, 1, 2, 4, 1: the same to 1e-10 in float64, with `contrast=global` and "
    "without batch norm",
    attempt,
    attempts=1,
    goal=30,
)
