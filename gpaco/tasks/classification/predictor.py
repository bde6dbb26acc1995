"""The model of a run, ready to predict."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpaco.errors import UserError
from gpaco.models.classifier import Classifier
from gpaco.models.gaussian import Gaussian
from gpaco.models.lora import merged
from gpaco.tasks.classification.calibration import read_calibration
from gpaco.tasks.classification.card import Calibration, Card, Tuned, build_model
from gpaco.tasks.classification.priors import correction, log_assumed, read_tuned
from gpaco.tasks.cost import cost
from gpaco.tasks.normalized import Normalized
from gpaco.training.card import read_card
from gpaco.training.run import Run, select_checkpoint, weights_of


class Predictor(Normalized):
    """Images to logits: the trained network with its normalization, calibration, tuned prior and card.

    Takes (N, 3, H, W), uint8 or floats from 0 to 1, at the size it was trained on, plus a border for a method that
    averages over crops.

    Args:
        gaussian: the closed-form classifier of the same features, if its logits are added.
    """

    model: Classifier
    card: Card
    shift: Tensor  # from priors

    def __init__(self, model: Classifier, card: Card, gaussian: Gaussian | None = None) -> None:
        super().__init__(model, card)
        self.gaussian, factors, tuned = gaussian, card.calibration, card.tuned
        self.factor = factors.head if factors else 1.0
        self.gaussian_factor = factors.gaussian if factors else 0.0
        shift = correction(card, unbiased=bool(tuned and tuned.unbiased), tau=tuned.tau if tuned else 0.0)
        if factors and gaussian is not None and factors.assumes != "uniform":  # but the closed form does
            shift = shift - np.float32(self.factor) * log_assumed(replace(card, assumes=factors.assumes)).astype(
                np.float32
            )
        self.register_buffer("shift", torch.from_numpy(shift), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        pixels, border = self.normalized(images), self.card.network.border
        if not border:
            return self.logits(self.model.pooled(pixels))
        size, middle = self.card.size, border // 2
        corners = [(0, 0), (0, border), (border, 0), (border, border), (middle, middle)]
        crops = [pixels[:, :, y : y + size, x : x + size] for y, x in corners]
        return torch.stack([self.logits(self.model.pooled(crop)) for crop in crops]).mean(0)

    def head(self, features: Tensor) -> Tensor:
        """Return the logits of the trained head alone, without factor and shift."""
        logits: Tensor = self.model.centers(self.model.hidden(features))
        return logits

    def logits(self, features: Tensor) -> Tensor:
        """Return logits (N, C) of the features (N, F) of the backbone."""
        logits = self.factor * self.head(features) + self.shift
        return logits if self.gaussian is None else logits + self.gaussian_factor * self.gaussian(features)


def load_classifier(
    run: Run,
    *,
    which: str = "best",
    device: str | torch.device = "cpu",
    calibrated: bool = True,
    tuned: bool = True,
) -> Predictor:
    """Return the model of a classification run with merged adapters, calibration and tuned prior.

    Calibration and prior belong to one checkpoint; others are loaded without them.
    """
    if run.recipe.train.task != "classification":
        raise UserError(f"{run.folder} is a run of {run.recipe.train.task}", "give a run of a classifier")
    found = select_checkpoint(run, which, ["extra"])
    card = read_card(Card, found.state["card"], str(found.path))
    model = build_model(card)
    model.load_state_dict(merged(weights_of(run, found)))
    share = found.tensors["extra"].get("loss.center_share")
    card = replace(card, step=found.step, center_share=None if share is None else tuple(share.tolist()))
    predictor = Predictor(model, card).to(device).eval()
    if calibrated:
        predictor = with_calibration(predictor, *read_calibration(run.folder, found.step))
    stored = read_tuned(run.folder) if tuned else None
    return with_prior(predictor, stored) if stored and stored.step == found.step else predictor


def with_prior(predictor: Predictor, tuned: Tuned) -> Predictor:
    """Return the model with a tuned prior. It was selected by macro recall, so it assumes uniform classes."""
    card = replace(predictor.card, tuned=tuned, assumes="uniform")
    return Predictor(predictor.model, card, predictor.gaussian).to(predictor.mean.device).eval()


def with_calibration(
    predictor: Predictor, calibration: Calibration | None, gaussian: Gaussian | None = None
) -> Predictor:
    """Return the model with calibrated logits, plus those of the closed-form classifier, if given."""
    if calibration is None:
        return predictor
    card = replace(predictor.card, calibration=calibration)
    if gaussian is not None:
        card = replace(card, assumes="uniform")
    return Predictor(predictor.model, card, gaussian).to(predictor.mean.device).eval()


def total_cost(predictors: Sequence[Predictor]) -> dict[str, Any]:
    """Return the parameters of all models in an ensemble, and their operations per image, in billions."""
    found = [cost(one, one.card.view.size, one.card.view.size) for one in predictors]
    parameters, flops = (sum(numbers) for numbers in zip(*found, strict=True))
    return {"models": len(found), "parameters": parameters, "gflops": round(flops / 1e9, 6)}


def load_classifiers(
    runs: Sequence[Run], *, which: str = "best", device: str | torch.device = "cpu"
) -> list[Predictor]:
    """Return the models of an ensemble. All must have a trained classifier and the same classes."""
    predictors = [load_classifier(run, which=which, device=device) for run in runs]
    for run, predictor in zip(runs, predictors, strict=True):
        if not predictor.card.classifies:
            raise UserError(
                f"{run.folder} is a stage that trains only features: its classifier is untrained",
                "give the folder of the whole run, which contains it",
            )
    if any(predictor.classes != predictors[0].classes for predictor in predictors):
        raise UserError("these runs do not have the same classes", "choose runs on the same data")
    return predictors
