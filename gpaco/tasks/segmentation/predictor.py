"""The model of a run, ready to predict."""

import torch
from torch import Tensor, nn

from gpaco.errors import UserError
from gpaco.tasks.segmentation.card import Card, build_model
from gpaco.tasks.segmentation.network import Segmenter
from gpaco.training.card import read_card
from gpaco.training.run import Run, select_checkpoint, weights_of


class ScenePredictor(nn.Module):
    """Images to class scores: the trained network with its normalization and its card.

    Takes (N, 3, H, W) of any size, uint8 or floats from 0 to 1; gives (N, C, H, W).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, card: Card) -> None:
        super().__init__()
        if not isinstance(model, Segmenter):
            raise TypeError("a segmenter is needed")
        self.model = model
        self.card = card
        self.register_buffer("mean", torch.tensor(card.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(card.std).view(1, 3, 1, 1), persistent=False)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.card.classes

    def forward(self, images: Tensor) -> Tensor:
        images = images / 255 if images.dtype == torch.uint8 else images
        return self.model.classify((images - self.mean) / self.std)


def load_segmenter(run: Run, *, which: str = "best", device: str | torch.device = "cpu") -> ScenePredictor:
    """Return the model of a segmentation run."""
    if run.recipe.train.task != "segmentation":
        raise UserError(f"{run.folder} is a run of {run.recipe.train.task}", "give a run that segments images")
    found = select_checkpoint(run, which)
    card = read_card(Card, found.state["card"], str(found.path))
    model = build_model(card)
    model.load_state_dict(weights_of(run, found))
    return ScenePredictor(model, card).to(device).eval()
