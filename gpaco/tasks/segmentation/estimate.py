"""Estimates how long training will take on this machine, from a few measured steps."""

import torch

from gpaco.recipes.settings import Recipe
from gpaco.system.precision import autocast
from gpaco.tasks.duration import format_time, seconds_of
from gpaco.tasks.segmentation.card import build_model, describe, fitted_size
from gpaco.tasks.segmentation.losses import SceneLoss
from gpaco.tasks.segmentation.scenes import SceneSplits

_IMAGES = 2  # images to measure


def estimate_seconds(recipe: Recipe, splits: SceneSplits, device: torch.device) -> float:
    """Estimate the seconds that one stage will take, within a factor of about two."""
    card = describe(recipe, splits)
    model = build_model(card).to(device).to(memory_format=torch.channels_last)
    loss, (height, width) = SceneLoss(recipe.method, recipe.segmentation), recipe.segmentation.crop
    crops = torch.zeros(_IMAGES, 3, height, width, device=device)
    masks = torch.zeros(_IMAGES, height, width, dtype=torch.long, device=device)

    def train() -> None:
        with autocast(device, recipe.train.amp):
            total = loss(model.train()(crops), masks)
        total.backward()

    step = seconds_of(train) / _IMAGES
    reading = seconds_of(lambda: splits.train.load(0))
    whole = torch.zeros(1, 3, *fitted_size(card), device=device)
    with torch.inference_mode():
        test = seconds_of(lambda: model.eval().classify(whole))
    judged = recipe.train.epochs * len(splits.val or ()) + len(splits.test or ())
    return recipe.train.epochs * len(splits.train) * max(step, reading) + judged * (test + reading)


def format_estimate(seconds: float, recipe: Recipe, device: torch.device) -> str:
    """Return a line about the time; if it is long, with a faster alternative."""
    faster = "fewer --epochs, or smaller crops: --set segmentation.crop=[128,128]"
    return format_time(seconds, faster, device, recipe.train.amp)
