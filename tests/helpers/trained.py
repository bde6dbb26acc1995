"""Small models that are trained in seconds."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpaco
from gpaco.training.run import Run
from helpers.scenes import SMALL, scene_folder

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 64, "report": False, "say": lambda line: None}


def halt(epoch: int, step: int = 1) -> Callable[[dict[str, Any]], None]:
    """A `show` that ends a run after a step, unsaved, as Ctrl-C in a notebook does."""

    def show(row: dict[str, Any]) -> None:
        if (row.get("epoch"), row.get("step")) == (epoch, step):
            raise KeyboardInterrupt

    return show


def terminate(epoch: int, step: int = 1) -> Callable[[dict[str, Any]], None]:
    """A `show` that sends SIGTERM after a step: the run saves and raises Stopped."""

    def show(row: dict[str, Any]) -> None:
        if (row.get("epoch"), row.get("step")) == (epoch, step):
            os.kill(os.getpid(), signal.SIGTERM)

    return show


def train_classifier(folder: Path) -> Run:
    """Train with the paper's prior, so that there is something to correct."""
    settings = ["method.prior=counts", "method.memory=64"]
    return gpaco.train("digits", out=folder, long_tail=20, lr=0.05, settings=settings, **QUICK | {"epochs": 3})


def train_segmenter(folder: Path, *more: str) -> Run:
    network = {"task": "segmentation", "model": "upernet-test_resnet"}
    options = QUICK | network | {"batch_size": 4, "epochs": 40, "lr": 0.05}
    return gpaco.train(scene_folder(folder / "data"), out=folder / "run", settings=[*SMALL, *more], **options)
