"""A classifier as two or three files that anybody can load: config.json, model.safetensors, gaussian.safetensors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from gpaco.models.gaussian import Gaussian
from gpaco.tasks.classification.card import Card, build_model
from gpaco.tasks.classification.predictor import Predictor, load_classifiers
from gpaco.tasks.published import origin, whole_tensors
from gpaco.training.card import read_card, write_card
from gpaco.training.run import Run

WEIGHTS, GAUSSIAN = "model.safetensors", "gaussian.safetensors"


def publish(run: Run, folder: Path) -> dict[str, Any]:
    """Write the weights of a run's best checkpoint to a folder, and return the card, for config.json."""
    (predictor,) = load_classifiers([run])
    card = predictor.card
    save_file(whole_tensors(predictor.model), folder / WEIGHTS)
    if predictor.gaussian is not None:
        save_file(whole_tensors(predictor.gaussian), folder / GAUSSIAN)
    return {"card": write_card(replace(card, weights=origin(card.weights)))}


def load_published(folder: Path, config: dict[str, Any], device: str | torch.device) -> Predictor:
    """Return the model that `publish` wrote."""
    card = read_card(Card, config["card"], str(folder / "config.json"))
    model = build_model(card)
    model.load_state_dict(load_file(folder / WEIGHTS))
    gaussian = None
    if (folder / GAUSSIAN).is_file():
        tensors = load_file(folder / GAUSSIAN)
        classes, features = tensors["weight"].shape
        gaussian = Gaussian(features, classes)
        gaussian.load_state_dict(tensors)
    return Predictor(model, card, gaussian).to(device).eval()
