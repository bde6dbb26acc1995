"""The model of a run, ready to predict."""

import torch
from torch import Tensor

from gpaco.errors import UserError
from gpaco.tasks.normalized import Normalized
from gpaco.tasks.segmentation.card import Card, build_model
from gpaco.tasks.segmentation.network import Segmenter
from gpaco.training.card import read_card
from gpaco.training.run import Run, select_checkpoint, weights_of


class ScenePredictor(Normalized):
    """Images to class scores: the trained network with its normalization and its card.

    Takes (N, 3, H, W) of any size, uint8 or floats from 0 to 1; returns (N, C, H, W).
    """

    model: Segmenter
    card: Card

    def forward(self, images: Tensor) -> Tensor:
        return self.model.classify(self.normalized(images))


def load_segmenter(run: Run, *, which: str = "best", device: str | torch.device = "cpu") -> ScenePredictor:
    """Return the model of a segmentation run."""
    if run.recipe.train.task != "segmentation":
        raise UserError(f"{run.folder} is a run of {run.recipe.train.task}", "give a run of a segmenter")
    found = select_checkpoint(run, which)
    card = read_card(Card, found.state["card"], str(found.path))
    model = build_model(card)
    model.load_state_dict(weights_of(run, found))
    return ScenePredictor(model, card).to(device).eval()
