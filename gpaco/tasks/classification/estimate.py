"""How long training will take on this machine, from a few measured steps."""

import math

import torch

from gpaco import methods
from gpaco.data.samples import Splits
from gpaco.models.freezing import freeze
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification.batches import caches, views_of_recipe
from gpaco.tasks.classification.card import build_model, describe
from gpaco.tasks.classification.heads import folds_used
from gpaco.tasks.duration import seconds_of, time_in_words

_IMAGES = 8  # that are measured


def estimate_seconds(recipe: Recipe, splits: Splits, device: torch.device) -> float:
    """Return the seconds that one stage will take, within a factor of two or so."""
    model = build_model(describe(recipe, splits)).to(device)
    freeze(model, recipe.train.part, lora_rank=recipe.train.lora_rank)
    size, images = recipe.model.size, len(splits.train)
    views = len(views_of_recipe(recipe)) * (2 if recipe.method.name in methods.SECOND_SAMPLER else 1)
    reading = seconds_of(lambda: [splits.train.load(i % images, size) for i in range(_IMAGES)]) / _IMAGES
    if splits.train.paths is None:
        reading = 0.0
    pixels = torch.zeros(_IMAGES, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)
    tested = sum(len(part) for name, part in splits.parts() if name != "train")

    @torch.inference_mode()
    def embed() -> None:
        model.eval().pooled(pixels)

    forward = seconds_of(embed) / _IMAGES
    trains = recipe.method.name not in methods.UNTRAINED
    if not caches(recipe):
        if not trains:
            return (images + tested) * (forward + reading)
        step = seconds_of(lambda: model.train()(pixels)[0].sum().backward()) / _IMAGES
        each = max(views * step, reading)
        return recipe.train.epochs * images * each + tested * (forward + reading)
    embedded = images * (1 + recipe.train.cached_views * trains) + tested
    seconds = embedded * max(forward, reading)
    if trains:
        model.backbone = torch.nn.Identity()
        features = torch.zeros(recipe.train.batch_size, model.num_features, device=device)
        step = 1.5 * views * seconds_of(lambda: model.train()(features)[0].sum().backward())
        seconds += (1 + folds_used(images)) * recipe.train.epochs * math.ceil(images / recipe.train.batch_size) * step
    return seconds


def in_words(seconds: float, recipe: Recipe) -> str:
    """Return a line about the time; if it is long, with what would be faster."""
    faster = "--set train.cached_views=1" if caches(recipe) else "--weights auto --train head, or fewer --epochs"
    return time_in_words(seconds, faster)
