"""A segmenter as two files that anybody can load: config.json and model.safetensors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from gpaco.tasks.published import origin, whole_tensors
from gpaco.tasks.segmentation.card import Card, build_model
from gpaco.tasks.segmentation.predictor import ScenePredictor, load_segmenter
from gpaco.training.card import read_card, write_card
from gpaco.training.run import Run

WEIGHTS = "model.safetensors"


def publish(run: Run, folder: Path) -> dict[str, Any]:
    """Write the weights of a run's best checkpoint to a folder, and return the card, for config.json."""
    predictor = load_segmenter(run)
    save_file(whole_tensors(predictor.model), folder / WEIGHTS)
    return {"card": write_card(replace(predictor.card, weights=origin(predictor.card.weights)))}


def load_published(folder: Path, config: dict[str, Any], device: str | torch.device) -> ScenePredictor:
    """Return the model that `publish` wrote."""
    card = read_card(Card, config["card"], str(folder / "config.json"))
    model = build_model(card)
    model.load_state_dict(load_file(folder / WEIGHTS))
    return ScenePredictor(model, card).to(device).eval()
