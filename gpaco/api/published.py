"""Models outside of run folders: as `gpaco push` writes them, and as `gpaco.load` reads them."""

import json
from pathlib import Path
from typing import Any

import torch

from gpaco.errors import UserError
from gpaco.tasks.classification import published as classification
from gpaco.tasks.classification.predictor import Predictor
from gpaco.tasks.segmentation import published as segmentation
from gpaco.tasks.segmentation.predictor import ScenePredictor

CONFIG = "config.json"
TASKS: dict[str, Any] = {"classification": classification, "segmentation": segmentation}


def is_published(folder: Path) -> bool:
    """Return whether a folder holds a model that `gpaco push` wrote."""
    return (folder / CONFIG).is_file() and not (folder / "recipe.toml").exists()


def is_ours(folder: Path) -> bool:
    """Return whether nobody but `gpaco push` can have written the model in a folder."""
    try:
        return is_published(folder) and "gpaco" in json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def load_folder(folder: Path, device: str | torch.device) -> Predictor | ScenePredictor:
    """Return the model in a folder that `gpaco push` wrote."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        task = TASKS[config["task"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder} has no model of gpaco", "give one that `gpaco push` wrote") from None
    found: Predictor | ScenePredictor = task.load_published(folder, config, device)
    return found
