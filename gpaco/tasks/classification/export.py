"""A classifier ready to be exported."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from gpaco.errors import UserError
from gpaco.tasks.classification.predictor import Predictor, load_classifiers
from gpaco.tasks.classification.priors import check_correction, final_logits
from gpaco.tasks.exportable import READING, Exportable, Size, describe_export
from gpaco.training.run import Run


class FinalLogits(nn.Module):
    """A loaded classifier followed by what `final_logits` does."""

    shift: Tensor

    def __init__(self, predictor: Predictor, *, prior: str | None, unbiased: bool) -> None:
        super().__init__()
        self.predictor = predictor
        nothing = np.zeros((1, len(predictor.classes)), np.float32)
        shift = final_logits(nothing, predictor.card, prior=prior, unbiased=unbiased)
        self.register_buffer("shift", torch.from_numpy(shift))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.predictor(images) + self.shift
        return logits


def exportable(run: Run, *, prior: str | None, unbiased: bool, size: Size | None, which: str) -> Exportable:
    """The model of a run with its corrections inside."""
    if size is not None:
        raise UserError("the image size of a classifier is fixed by training", "leave out --size")
    (predictor,) = load_classifiers([run], which=which)
    card = predictor.card
    check_correction(card, prior, unbiased)
    if card.whole:
        steps = ["resize to the size, whatever the shape"]
    else:
        steps = [f"resize the shorter side to {card.resize}", "cut the size out of the middle"]
    about = describe_export(run.recipe, card, (card.size, card.size), ["N", "C"]) | {
        "steps": [*READING, *steps, "channels first, uint8"],
        "whole": card.whole,
        "resize": card.resize,
        "interpolation": card.interpolation,
        "prior": Path(prior).name if prior else "uniform" if card.tuned else card.assumes,  # a file by its name
    }
    module = FinalLogits(predictor, prior=prior, unbiased=unbiased).eval()
    return Exportable(module, predictor.model.backbone.state_dict(), about, (1, 2, 7))
