"""Small models that are trained in seconds."""

from pathlib import Path
from typing import Any

import gpaco
from gpaco.training.run import Run
from helpers.scenes import SMALL, scene_folder

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 64, "report": False, "say": lambda line: None}


def train_classifier(folder: Path) -> Run:
    """Train with the paper's prior, so that there is something to correct."""
    settings = ["method.prior=counts", "method.memory=64"]
    return gpaco.train("digits", out=folder, long_tail=20, lr=0.05, settings=settings, **QUICK | {"epochs": 3})


def train_segmenter(folder: Path, *more: str) -> Run:
    network = {"task": "segmentation", "model": "upernet-test_resnet"}
    options = QUICK | network | {"batch_size": 4, "epochs": 40, "lr": 0.05}
    return gpaco.train(scene_folder(folder / "data"), out=folder / "run", settings=[*SMALL, *more], **options)
