"""A model as a folder that anyone can load: `gpaco push` writes it, `gpaco.load` reads it.

It has config.json with the card, model.safetensors, and gaussian.safetensors if the head has a closed form beside it.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from gpaco import __version__
from gpaco.errors import UserError
from gpaco.models.gaussian import gaussian_from
from gpaco.system.words import one_line
from gpaco.tasks.classification import card as classification
from gpaco.tasks.classification.calibration import GAUSSIAN
from gpaco.tasks.classification.predictor import Predictor, load_classifiers
from gpaco.tasks.segmentation import card as segmentation
from gpaco.tasks.segmentation.predictor import ScenePredictor, load_segmenter
from gpaco.training.card import read_card, write_card
from gpaco.training.run import RECIPE, Run

CONFIG, WEIGHTS = "config.json", "model.safetensors"
CARDS: dict[str, Any] = {"classification": classification, "segmentation": segmentation}


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder holds a model that `gpaco push` wrote."""
    return (folder / CONFIG).is_file() and not (folder / RECIPE).exists()


def is_ours(folder: Path) -> bool:
    """Return whether a folder holds a model that only `gpaco push` can have written."""
    try:
        return is_model_folder(folder) and "gpaco" in json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def write_model_folder(run: Run, folder: Path) -> None:
    """Write the best checkpoint of a run to an existing folder."""
    task = run.recipe.train.task
    predictor = load_segmenter(run) if task == "segmentation" else load_classifiers([run])[0]
    (folder / WEIGHTS).write_bytes(save(whole_tensors(predictor.model)))  # not save_file: only the owner could read it
    if isinstance(predictor, Predictor) and predictor.gaussian is not None:
        (folder / GAUSSIAN).write_bytes(save(whole_tensors(predictor.gaussian)))
    card: Any = predictor.card
    stored = write_card(replace(card, weights=origin(card.weights)))
    config = {"gpaco": __version__, "task": task, "card": stored}
    if (readme := folder / "README.md").is_file():
        config["readme"] = sha256_of(readme)  # tells later whether somebody has changed it
    (folder / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")


def load_model_folder(folder: Path, device: str | torch.device) -> Predictor | ScenePredictor:
    """Return the model in a folder that `gpaco push` wrote."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        kind, stored = CARDS[config["task"]], dict(config["card"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder} has no gpaco model", "give a folder that `gpaco push` wrote") from None
    card = read_card(kind.Card, stored, str(folder / CONFIG))
    model, gaussian = kind.build_model(card), None
    try:
        model.load_state_dict(load_file(folder / WEIGHTS))
        if kind is classification and card.calibration and card.calibration.sha256:
            gaussian = gaussian_from(load_file(folder / GAUSSIAN))
    except (OSError, SafetensorError, RuntimeError, KeyError, ValueError) as error:
        raise UserError(
            f"the weights in {folder} are missing, damaged or from another model: {one_line(error)}",
            "push it again, or download it again",
        ) from error
    found = ScenePredictor(model, card) if kind is segmentation else Predictor(model, card, gaussian)
    return found.to(device).eval()


def whole_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a network as contiguous tensors, which safetensors requires."""
    return {key: value.contiguous() for key, value in model.state_dict().items()}


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def origin(weights: str) -> str:
    """Return where pretrained weights came from, without the folder of a file on this machine.

    >>> origin("/home/me/backbone.st"), origin("hub:timm/resnet18.a1_in1k@main")
    ('backbone.st', 'hub:timm/resnet18.a1_in1k@main')
    """
    return Path(weights).name if Path(weights).is_absolute() else weights
