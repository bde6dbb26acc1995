"""Estimates how long training will take on this machine, from a few measured steps."""

from dataclasses import replace

import numpy as np
import torch

from gpaco import methods
from gpaco.data.batches import steps_per_epoch
from gpaco.data.holdout import balanced_subset
from gpaco.data.samples import Splits
from gpaco.models.freezing import freeze
from gpaco.recipes.settings import TWO_STAGES, Recipe
from gpaco.system import distributed
from gpaco.system.precision import autocast
from gpaco.tasks.classification.batches import FeatureSource, cached_kinds, caches, views_of_recipe
from gpaco.tasks.classification.card import build_model, describe
from gpaco.tasks.classification.feature_cache import Vectors
from gpaco.tasks.classification.heads import FOLDS, fit_head, folds_used
from gpaco.tasks.classification.learner import Earlier
from gpaco.tasks.classification.start import BACKBONE
from gpaco.tasks.duration import format_time, seconds_of

_IMAGES = 8  # images to measure
_STEPS = 4  # steps of a head to measure


def estimate_seconds(recipe: Recipe, splits: Splits, device: torch.device) -> float:
    """Estimate the seconds that one stage will take, within a factor of about two."""
    model = build_model(describe(recipe, splits)).to(device).to(memory_format=torch.channels_last)
    freeze(model, recipe.train.part, lora_rank=recipe.train.lora_rank)
    size, images = recipe.model.size, len(splits.train)
    views = len(views_of_recipe(recipe)) * (2 if recipe.method.name in methods.SECOND_SAMPLER else 1)
    reading = seconds_of(lambda: [splits.train.load(i % images, size) for i in range(_IMAGES)]) / _IMAGES
    if splits.train.paths is None:
        reading = 0.0
    pixels = torch.zeros(_IMAGES, 3, size, size, device=device)
    tested = sum(len(part) for name, part in splits.parts() if name != "train")

    @torch.inference_mode()
    def embed() -> None:
        with autocast(device, recipe.train.amp):
            model.eval().pooled(pixels)

    def train() -> None:
        with autocast(device, recipe.train.amp):
            total = model.train()(pixels)[0].sum()
        total.backward()

    forward = seconds_of(embed) / _IMAGES
    trains = recipe.method.name not in methods.UNTRAINED
    if not caches(recipe):
        if not trains:
            return (images + tested) * (forward + reading)
        step = seconds_of(train) / _IMAGES
        each = max(views * step, reading)
        return recipe.train.epochs * images * each + tested * (forward + reading)
    embedded = images * (1 + recipe.train.cached_views * trains) + tested
    seconds = embedded * max(forward, reading)
    if trains:
        fits = 1 + folds_used(images) * (1 - 1 / FOLDS)
        steps = recipe.train.epochs * steps_per_epoch(images, recipe.train.batch_size)
        seconds += fits * steps * head_step(recipe, splits, model.num_features, device) + 60 * recipe.train.tune
    return seconds


def head_step(recipe: Recipe, splits: Splits, width: int, device: torch.device) -> float:
    """Return the seconds of a training step of a head, from a few steps on random features."""
    if recipe.method.name in TWO_STAGES:  # they have no first stage to continue from yet
        recipe = replace(recipe, method=replace(recipe.method, name="ce"))
    train, world = recipe.train, distributed.world_size()
    batch_size = max(train.batch_size - train.batch_size % world, world)
    rows = np.resize(balanced_subset(splits.train.labels, _STEPS * batch_size, seed=0), _STEPS * batch_size)
    some = Splits(splits.train.subset(rows), None, None, splits.reader)
    short = replace(recipe, train=replace(train, batch_size=batch_size, epochs=1))
    views = views_of_recipe(recipe)
    features = Vectors(torch.rand(len(rows), width), device)
    source = FeatureSource(short, some, views, cached_kinds(views, train.cached_views), features)
    source.embed_views()
    card = describe(recipe, some)
    return seconds_of(lambda: fit_head(short, some, card, source, device, Earlier())) / _STEPS


def format_estimate(seconds: float, recipe: Recipe, device: torch.device) -> str:
    """Return a line about the time; if it is long, with a faster alternative."""
    faster = "fewer --epochs"
    if caches(recipe):
        faster = "--set train.cached_views=1"
    elif recipe.method.name not in methods.NEED_IMAGES:
        faster = f"--model {BACKBONE} --weights package --train head, or fewer --epochs"
    return format_time(seconds, faster, device, recipe.train.amp)
