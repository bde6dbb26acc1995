"""A classifier ready to be exported."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from gpaco.errors import UserError
from gpaco.metrics.groups import groups
from gpaco.tasks.classification.logits import softmax
from gpaco.tasks.classification.predictor import Predictor, load_classifiers, total_cost
from gpaco.tasks.classification.priors import assumed_prior, check_correction, final_logits
from gpaco.tasks.exportable import READING, Exportable, Size, describe_export
from gpaco.training.run import Run


class MeanLogits(nn.Module):
    """An ensemble: the mean of the logits of its models."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([model(images) for model in self.models]).mean(0)


class FinalLogits(nn.Module):
    """A loaded classifier with the adjustments of `final_logits`."""

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


def exportable(runs: Sequence[Run], *, prior: str | None, unbiased: bool, size: Size | None, which: str) -> Exportable:
    """Return the model of a run, or an ensemble of several, with its adjustments."""
    if size is not None:
        raise UserError("the image size of a classifier is fixed by training", "leave out --size")
    predictors = load_classifiers(runs, which=which)
    card = predictors[0].card
    for predictor in predictors:
        check_correction(predictor.card, prior, unbiased)
        if predictor.card.view != card.view:
            raise UserError("these runs use different image sizes, and a file has one input", "export them one by one")
    if card.whole:
        steps = ["resize to the input size, ignoring the aspect ratio"]
    else:
        steps = [f"resize the shorter side to {card.view.resize}", "crop the input size from the center"]
    group = None if card.counts is None else groups(card.counts, card.many, card.few).tolist()
    shares = assumed_prior([predictor.card for predictor in predictors], prior)
    assumed = sorted({predictor.card.assumes for predictor in predictors})
    about = describe_export(runs[0].recipe, card, group, (card.view.size, card.view.size), ["N", "C"]) | {
        "steps": [*READING, *steps, "channels first, uint8"],
        "whole": card.whole,
        "resize": card.view.resize,
        "interpolation": card.interpolation,
        "cost": total_cost(predictors),
        # A file is named without its folder. `shares` is the class distribution that the logits assume.
        "prior": Path(prior).name if prior else " and ".join(assumed),
        "shares": None if shares is None else softmax(shares[None])[0].tolist(),
    }
    models = [FinalLogits(predictor, prior=prior, unbiased=unbiased).eval() for predictor in predictors]
    module = models[0] if len(models) == 1 else MeanLogits(models).eval()
    # Narrow experts fit no other network.
    weights = {} if card.network.narrow else predictors[0].model.backbone.state_dict()
    return Exportable(module, weights, about, (1, 2, 7))
