"""load(): the model of a run, ready to predict."""

from pathlib import Path

import torch

from gpaco.tasks.classification.predictor import Predictor, load_classifier
from gpaco.tasks.segmentation.predictor import ScenePredictor, load_segmenter
from gpaco.training.run import Run, as_run


def load(
    run: Run | Path | str, *, which: str = "best", device: str | torch.device = "cpu", tuned: bool = True
) -> Predictor | ScenePredictor:
    """Return the model of a run: images (N, 3, H, W) -> logits (N, C), or (N, C, H, W) for a segmenter.

    Adapters are merged into plain layers. A prior that was tuned for this checkpoint is part of the model.

    Args:
        which: "best" on validation data (the last one if there is none) or "last".
        tuned: False leaves out a tuned prior.
    """
    run = as_run(run)
    if run.recipe.train.task == "segmentation":
        return load_segmenter(run, which=which, device=device)
    return load_classifier(run, which=which, device=device, tuned=tuned)
