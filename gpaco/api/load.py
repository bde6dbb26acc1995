"""load(): the model of a run, ready to predict."""

from pathlib import Path

import torch

from gpaco.api.model_folder import is_model_folder, load_model_folder
from gpaco.errors import UserError
from gpaco.models.weights.hub import fetch_model, is_hub
from gpaco.tasks.classification.predictor import Predictor, load_classifier
from gpaco.tasks.segmentation.predictor import ScenePredictor, load_segmenter
from gpaco.training.run import Run, as_run


def load(
    run: Run | Path | str, *, which: str = "best", device: str | torch.device = "cpu", tuned: bool = True
) -> Predictor | ScenePredictor:
    """Return the model of a run: images (N, 3, H, W) -> logits (N, C), or (N, C, H, W) for a segmenter.

    "hub:OWNER/NAME" loads a model that `gpaco push` uploaded to the Hugging Face hub, by way of the hub's cache. A
    folder written by `gpaco push --dry-run` works too.

    Adapters are merged into plain layers. A prior that was tuned for this checkpoint is part of the model.

    Args:
        which: "best" on validation data (the last one without validation data) or "last".
        tuned: whether to apply a tuned prior.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> from gpaco import train
    >>> quick = {"method": "ce", "long_tail": 50, "epochs": 1, "report": False}
    >>> with TemporaryDirectory() as out:
    ...     model = load(train("digits", out=out, say=lambda line: None, **quick))
    >>> model(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """
    if isinstance(run, str) and is_hub(run):
        run = fetch_model(run)
    if isinstance(run, Path | str) and is_model_folder(Path(run)):
        if which != "best" or not tuned:
            raise UserError("a pushed model has only one checkpoint, with its prior", "leave out which and tuned")
        return load_model_folder(Path(run), device)
    run = as_run(run)
    if run.recipe.train.task == "segmentation":
        return load_segmenter(run, which=which, device=device)
    return load_classifier(run, which=which, device=device, tuned=tuned)
