"""What a classifier learns from and is tested on: images, or features that a frozen backbone has computed once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpaco.data.batches import Batch, batches, mix, plan
from gpaco.data.counter_random import uniforms
from gpaco.data.samples import Samples, Splits
from gpaco.data.views.views import View
from gpaco.errors import UserError
from gpaco.models.classifier import Classifier
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.progress import Show
from gpaco.tasks.classification.evaluation import logits_of
from gpaco.tasks.classification.feature_cache import Features, Indices
from gpaco.tasks.classification.frozen import Frozen, take_backbone
from gpaco.tasks.classification.priors import Logits
from gpaco.training.run import Predictor


@dataclass(frozen=True)
class Source:
    """The batches of an epoch from a step on, and the logits (N, C) that a model gives a whole part."""

    batches: Callable[[int, int], Iterator[Batch]]
    logits: Callable[[Classifier, Samples], Logits]


def source_of(
    recipe: Recipe,
    splits: Splits,
    model: Classifier,
    about: dict[str, Any],
    home: Path,
    device: torch.device,
    say: Callable[[str], None],
    show: Show,
) -> Source:
    """Images, or cached features where only the head is trained: the backbone is then moved out of the model."""
    views = [view_of(recipe, name) for name in (recipe.views.first, recipe.views.second) if name]
    if not caches(recipe):
        return from_images(recipe, splits.train, views, about, device)
    cached = cached_kinds(views, recipe.train.cached_views)
    return from_features(recipe, splits, views, cached, take_backbone(model, recipe, about, home, device, say, show))


def caches(recipe: Recipe) -> bool:
    """Whether features are computed once, and a head learns from them."""
    return recipe.train.part == "head" and recipe.train.cached_views > 0


def refuse_changed_pixels(recipe: Recipe) -> None:
    """Raise an error if a stage asks for changes to pixels that cached features cannot have."""
    if caches(recipe) and (recipe.method.mixup or recipe.method.cutmix or recipe.views.erase):
        raise UserError(
            "mixup, cutmix and erasing change pixels, and cached features have none",
            "do without them, or embed in every step: --set train.cached_views=0",
        )


def from_images(
    recipe: Recipe, samples: Samples, views: list[View], about: dict[str, Any], device: torch.device
) -> Source:
    """Views of images, made anew for every step."""
    method, settings = recipe.method, recipe.train

    def epoch_batches(epoch: int, start: int) -> Iterator[Batch]:
        made = batches(
            samples,
            views,
            epoch=epoch,
            start=start,
            mean=tuple(about["mean"]),
            std=tuple(about["std"]),
            workers=settings.workers,
            erase=recipe.views.erase,
            device=device,
            **_order(recipe),
        )
        for step, batch in enumerate(made, start):
            yield mix(batch, method.mixup, method.cutmix, len(samples.classes), settings.seed, epoch, step)

    def logits(model: Classifier, samples: Samples) -> Logits:
        device = next(model.parameters()).device
        return logits_of(Predictor(model, about).to(device).eval(), samples)

    return Source(epoch_batches, logits)


def from_features(recipe: Recipe, splits: Splits, views: list[View], cached: list[View], frozen: Frozen) -> Source:
    """Features of the `cached` views, which stand for the views of a step in turn."""
    samples, tested = splits.train, cache(frozen.of_tested)
    features, labels = frozen.of_views(samples, cached), torch.from_numpy(samples.labels)
    if splits.val is not None:
        tested(splits.val)  # now, not after the first epoch

    def epoch_batches(epoch: int, start: int) -> Iterator[Batch]:
        for indices, keys in plan(samples.labels, epoch=epoch, start=start, **_order(recipe)):
            chosen = chosen_views(recipe.train.seed, epoch, keys, views, cached)
            yield Batch([features.take(indices, one) for one in chosen], labels[indices])

    return Source(epoch_batches, lambda model, samples: head_logits(model, tested(samples)))


def cached_kinds(views: Sequence[View], cached: int) -> list[View]:
    """The view that each cached one is: all of the same kind, or of two kinds in turn."""
    kinds = list(dict.fromkeys(views))
    if cached < len(kinds):
        raise UserError(
            f"{len(kinds)} different views need at least as many cached ones, not {cached}",
            f"--set train.cached_views={2 * len(kinds)}, or the same view twice: --set views.second={views[0].name}",
        )
    return [kinds[k % len(kinds)] for k in range(cached)]


def chosen_views(seed: int, epoch: int, keys: Indices, views: Sequence[View], cached: Sequence[View]) -> list[Indices]:
    """For each view of a batch, which of the cached views each image shows: two of one kind are not the same one.

    A function of seed, epoch and key alone: the cached views of an image are put in an order that these draw, and views
    of one kind take the first, the second and so on.
    """
    draws = uniforms(seed, epoch, keys, 0, len(cached))
    chosen = []
    for v, view in enumerate(views):
        own = np.array([k for k, kind in enumerate(cached) if kind == view])
        order = draws[:, own].argsort(axis=1, kind="stable")
        earlier = sum(other == view for other in views[:v])
        chosen.append(own[order[:, earlier % len(own)]])
    return chosen


@torch.inference_mode()
def head_logits(model: Classifier, features: Features, batch_size: int = 4096) -> Logits:
    """Logits (N, C) from cached features; each process does its share once, and all get the whole."""
    mine = np.array(distributed.mine(len(features)), np.int64)
    device = model.centers.weight.device
    parts = [torch.zeros(0, model.centers.out_features, device=device)]
    for start in range(0, len(mine), batch_size):
        rows = mine[start : start + batch_size]
        parts.append(model.centers(model.hidden(features.take(rows, np.zeros_like(rows)).to(device))))
    logits: Logits = distributed.in_order(torch.cat(parts).float(), len(features)).cpu().numpy()
    return logits


def _order(recipe: Recipe) -> dict[str, Any]:
    """What `plan` has to know of the recipe and of the processes."""
    settings = recipe.train
    return {
        "batch_size": settings.batch_size,
        "seed": settings.seed,
        "sampler": settings.sampler,
        "rank": distributed.rank(),
        "world": distributed.world_size(),
    }


def view_of(recipe: Recipe, name: str) -> View:
    views = recipe.views
    scale = (views.crop_scale[0], views.crop_scale[1]) if views.crop_scale else None
    return View(name, recipe.model.size, scale, views.ops, views.magnitude, views.flip)
