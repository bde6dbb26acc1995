"""How long training will take on this machine, from a few measured steps."""

import math
import time
from collections.abc import Callable

import torch

from gpaco import methods
from gpaco.data.samples import Splits
from gpaco.models.freezing import freeze
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification.batches import caches
from gpaco.tasks.classification.card import build_model, describe
from gpaco.tasks.classification.heads import folds_used

LONG = 30 * 60  # seconds, after which a faster way is suggested
_IMAGES = 8  # that are measured


def estimate_seconds(recipe: Recipe, splits: Splits, device: torch.device) -> float:
    """Return the seconds that one stage will take, within a factor of two or so."""
    model = build_model(describe(recipe, splits)).to(device)
    freeze(model, recipe.train.part, lora_rank=recipe.train.lora_rank)
    size, images = recipe.model.size, len(splits.train)
    views = 2 if recipe.views.second else 1
    reading = _seconds(lambda: [splits.train.load(i % images, size) for i in range(_IMAGES)]) / _IMAGES
    if splits.train.paths is None:
        reading = 0.0
    pixels = torch.zeros(_IMAGES, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)
    tested = sum(len(part) for name, part in splits.parts() if name != "train")

    @torch.inference_mode()
    def embed() -> None:
        model.eval().backbone(pixels)

    forward = _seconds(embed) / _IMAGES
    if not caches(recipe):
        step = _seconds(lambda: model.train()(pixels)[0].sum().backward()) / _IMAGES
        each = max(views * step, reading)
        return recipe.train.epochs * images * each + tested * (forward + reading)
    trains = recipe.method.name not in methods.CLOSED_FORM
    embedded = images * (1 + recipe.train.cached_views * trains) + tested
    seconds = embedded * max(forward, reading)
    if trains:
        model.backbone = torch.nn.Identity()
        features = torch.zeros(recipe.train.batch_size, model.num_features, device=device)
        step = 1.5 * views * _seconds(lambda: model.train()(features)[0].sum().backward())
        seconds += (1 + folds_used(images)) * recipe.train.epochs * math.ceil(images / recipe.train.batch_size) * step
    return seconds


def in_words(seconds: float, recipe: Recipe) -> str:
    """Return a line about the time; if it is long, with what would be faster."""
    minutes = seconds / 60
    long = f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"
    text = f"estimated time on this machine: about {long if minutes >= 1.5 else 'a minute'}"
    if seconds <= LONG:
        return text
    faster = "--set train.cached_views=1" if caches(recipe) else "--weights auto --train head, or fewer --epochs"
    return f"{text}; faster: {faster}"


def _seconds(action: Callable[[], object]) -> float:
    """Return the time of an action, after one try to warm up."""
    action()
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
