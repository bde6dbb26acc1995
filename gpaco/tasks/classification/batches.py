"""Batches for a classifier: images, or features that a frozen backbone has computed once."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpaco.data.batches import Batch, batches, plan
from gpaco.data.counter_random import uniforms
from gpaco.data.samples import Samples, Splits
from gpaco.data.views.views import View
from gpaco.errors import UserError
from gpaco.models.classifier import Classifier
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.progress import Say
from gpaco.tasks.classification.card import Card
from gpaco.tasks.classification.evaluation import logits_of
from gpaco.tasks.classification.feature_cache import Features, Indices
from gpaco.tasks.classification.frozen import Frozen, take_backbone
from gpaco.tasks.classification.predictor import Predictor
from gpaco.tasks.classification.priors import Logits


def source_of(
    recipe: Recipe, splits: Splits, model: Classifier, card: Card, home: Path, device: torch.device, say: Say
) -> "tuple[Source, Card]":
    """Return images, or cached features if only the head is trained: the backbone is then moved out of the model.

    Also return the card, with the hash of that backbone.
    """
    views = [view_of(recipe, name) for name in (recipe.views.first, recipe.views.second) if name]
    if not caches(recipe):
        return ImageSource(recipe, splits.train, views, card, device), card
    cached = cached_kinds(views, recipe.train.cached_views)
    frozen = take_backbone(model, recipe, card, home, device, say)
    return FeatureSource(recipe, splits, views, cached, frozen), frozen.card


def caches(recipe: Recipe) -> bool:
    """Whether a head is trained on features that are computed once."""
    return recipe.train.part == "head" and recipe.train.cached_views > 0


def check_pixels(recipe: Recipe) -> None:
    """Raise an error if a stage asks for changes to pixels that cached features cannot have."""
    if caches(recipe) and (recipe.method.mixup or recipe.method.cutmix or recipe.views.erase):
        raise UserError(
            "mixup, cutmix and erasing change pixels, and cached features have none",
            "leave them out, or embed in every step: --set train.cached_views=0",
        )


class ImageSource:
    """Views of images, new ones in every step."""

    def __init__(self, recipe: Recipe, samples: Samples, views: list[View], card: Card, device: torch.device) -> None:
        self.recipe, self.samples, self.views, self.card, self.device = recipe, samples, views, card, device

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Return the batches of an epoch from step `start` on."""
        return batches(
            self.samples,
            self.views,
            epoch=epoch,
            start=start,
            mean=self.card.mean,
            std=self.card.std,
            workers=self.recipe.train.workers,
            erase=self.recipe.views.erase,
            mixup=self.recipe.method.mixup,
            cutmix=self.recipe.method.cutmix,
            device=self.device,
            **_order(self.recipe),
        )

    def logits(self, model: Classifier, samples: Samples) -> Logits:
        """Return the logits (N, C) of a whole split."""
        return logits_of(Predictor(model, self.card).to(self.device).eval(), samples)


class FeatureSource:
    """Cached features: the `cached` views take turns as the views of a step."""

    def __init__(self, recipe: Recipe, splits: Splits, views: list[View], cached: list[View], frozen: Frozen) -> None:
        self.recipe, self.samples, self.views, self.cached, self.frozen = recipe, splits.train, views, cached, frozen
        self.features = frozen.of_views(splits.train, cached)
        self.labels = torch.from_numpy(splits.train.labels)
        self.tested: dict[Samples, Features] = {}
        if splits.val is not None:
            self._tested(splits.val)  # now, not after the first epoch

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        for indices, keys in plan(self.samples.labels, epoch=epoch, start=start, **_order(self.recipe)):
            chosen = chosen_views(self.recipe.train.seed, epoch, keys, self.views, self.cached)
            yield Batch([self.features.take(indices, one) for one in chosen], self.labels[indices])

    def logits(self, model: Classifier, samples: Samples) -> Logits:
        return head_logits(model, self._tested(samples))

    def _tested(self, samples: Samples) -> Features:
        if samples not in self.tested:
            self.tested[samples] = self.frozen.of_tested(samples)
        return self.tested[samples]


Source = ImageSource | FeatureSource  # where a learner gets its batches, and its logits on validation data


def cached_kinds(views: Sequence[View], cached: int) -> list[View]:
    """Return the kind of each cached view: all the same, or two kinds in turn."""
    kinds = list(dict.fromkeys(views))
    if cached < len(kinds):
        raise UserError(
            f"{len(kinds)} different views need at least as many cached ones, not {cached}",
            f"--set train.cached_views={2 * len(kinds)}, or the same view twice: --set views.second={views[0].name}",
        )
    return [kinds[k % len(kinds)] for k in range(cached)]


def chosen_views(seed: int, epoch: int, keys: Indices, views: Sequence[View], cached: Sequence[View]) -> list[Indices]:
    """Return for each view of a batch the cached view of each image; two views of one kind get different ones.

    A function of seed, epoch and key alone: they shuffle the cached views of an image, and views of one kind take the
    first, the second and so on.
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
    """Return logits (N, C) from cached features. Each process computes its share once, and all get the whole."""
    mine = np.array(distributed.mine(len(features)), np.int64)
    device = model.centers.weight.device
    parts = [torch.zeros(0, model.centers.out_features, device=device)]
    for start in range(0, len(mine), batch_size):
        rows = mine[start : start + batch_size]
        parts.append(model.centers(model.hidden(features.take(rows, np.zeros_like(rows)).to(device))))
    logits: Logits = distributed.in_order(torch.cat(parts).float(), len(features)).cpu().numpy()
    return logits


def _order(recipe: Recipe) -> dict[str, Any]:
    """Return the arguments of `plan` that depend on the recipe and on the processes."""
    return {
        "batch_size": recipe.train.batch_size,
        "seed": recipe.train.seed,
        "sampler": recipe.train.sampler,
        "rank": distributed.rank(),
        "world": distributed.world_size(),
    }


def view_of(recipe: Recipe, name: str) -> View:
    views = recipe.views
    scale = (views.crop_scale[0], views.crop_scale[1]) if views.crop_scale else None
    return View(name, recipe.model.size, scale, views.ops, views.magnitude, views.flip)
