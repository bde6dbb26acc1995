"""Batches for a classifier: images, or cached features of a frozen backbone."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gpaco import methods
from gpaco.data.batches import Batch, batches, plan
from gpaco.data.counter_random import uniforms
from gpaco.data.samples import Samples, Splits
from gpaco.data.views.eval import images_as_tested
from gpaco.data.views.views import View, normalize
from gpaco.errors import UserError
from gpaco.models.classifier import Classifier
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.progress import Say
from gpaco.tasks.classification.card import Card
from gpaco.tasks.classification.evaluation import Ints, predicted, predictions_of
from gpaco.tasks.classification.feature_cache import Indices, Rows, Vectors
from gpaco.tasks.classification.frozen import Frozen, take_backbone
from gpaco.tasks.classification.logits import Logits
from gpaco.tasks.classification.predictor import Predictor

BLOCK = 4096  # rows of features read at a time


def source_of(
    recipe: Recipe, splits: Splits, model: Classifier, card: Card, home: Path, device: torch.device, say: Say
) -> "tuple[Source, Card]":
    """Return images, or cached features if only the head is trained, and the card.

    For cached features, the backbone is moved out of the model, and the card has its hash.
    """
    views = views_of_recipe(recipe)
    if not caches(recipe):
        return ImageSource(recipe, splits.train, views, card, device), card
    cached = cached_kinds(views, recipe.train.cached_views)
    frozen = take_backbone(model, recipe, card, home, device, say)
    return FeatureSource(recipe, splits, views, cached, frozen), frozen.card


def caches(recipe: Recipe) -> bool:
    """Return whether a head is trained on cached features."""
    return recipe.train.part == "head" and recipe.train.cached_views > 0


def check_pixels(recipe: Recipe) -> None:
    """Raise an error if a stage needs images but has cached features, or cannot divide its batches."""
    name = recipe.method.name
    if caches(recipe) and name in methods.NEED_IMAGES:
        raise no_cached_features(name)
    parts = distributed.world_size() * recipe.train.accumulate
    if name in methods.SECOND_SAMPLER and recipe.train.batch_size % parts:
        raise UserError(
            f"{name} needs batches with parts of equal size", f"choose a --batch-size that is divisible by {parts}"
        )
    if name in methods.WEIGHTED_BATCH and recipe.train.accumulate > 1:
        raise UserError(f"{name} weights the images of a whole batch", "leave out train.accumulate")
    if caches(recipe) and (recipe.method.mixup or recipe.method.cutmix or recipe.views.erase):
        raise UserError(
            "mixup, cutmix and erasing need images, not cached features",
            "leave them out, or embed in every step: --set train.cached_views=0",
        )


def no_cached_features(name: str) -> UserError:
    return UserError(
        f"{name} changes the network, so it does not work on cached features", "--train all, or another method"
    )


def check_projector(recipe: Recipe, images: int) -> None:
    """Raise an error if a projector with batch norm would see a single image, which has no variance."""
    train, world = recipe.train, distributed.world_size()
    least = min(train.batch_size, images) // world // train.accumulate
    if methods.projector(recipe) == "paco" and least == 1:
        raise UserError(
            "the projector 'paco' has batch norm, which needs at least two images at a time, but gets one",
            f"--batch-size {2 * world * train.accumulate} or more, or another projector: --set model.projector=gpaco",
        )


class ImageSource:
    """Views of images, new ones in every step."""

    def __init__(self, recipe: Recipe, samples: Samples, views: list[View], card: Card, device: torch.device) -> None:
        self.recipe, self.samples, self.views, self.card, self.device = recipe, samples, views, card, device

    def with_recipe(self, recipe: Recipe) -> Self:
        """Return the same images for another recipe."""
        other = copy(self)
        other.recipe = recipe
        return other

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Return the batches of an epoch, from step `start` on."""
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
            accumulate=self.recipe.train.accumulate,
            device=self.device,
            **_order(self.recipe),
        )

    @torch.no_grad()
    def seen(self, model: Classifier, samples: Samples | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features below the classifier, and labels, of images in the test view; by default training images."""
        samples = samples or self.samples
        chunks = [np.arange(k, min(k + 256, len(samples))) for k in range(0, len(samples), 256)]
        view = replace(self.card, network=replace(self.card.network, border=0)).view
        for chunk, pixels in zip(chunks, images_as_tested(samples, view, chunks), strict=True):
            images = normalize(pixels.to(self.device), self.card.mean, self.card.std)
            yield model.features(images).float(), torch.from_numpy(samples.labels[chunk])

    def predictions(self, model: Classifier, samples: Samples) -> Ints:
        """Return the predicted classes (N,) of a whole split; -1 if logits are not finite."""
        return predictions_of(Predictor(model, self.card).to(self.device).eval(), samples)


class FeatureSource:
    """Cached features: the views of a step are chosen from the `cached` views."""

    def __init__(
        self, recipe: Recipe, splits: Splits, views: list[View], cached: list[View], frozen: Frozen | Vectors
    ) -> None:
        self.recipe, self.samples, self.views, self.cached, self.frozen = recipe, splits.train, views, cached, frozen
        self.labels = splits.train.labels
        self.rows = np.arange(len(splits.train))  # of features to train on
        self.before: nn.Module | None = None  # a fixed layer between features and head
        self.known: dict[Samples, Rows] = {}  # features of splits in the test view
        for samples in (splits.train, splits.val, splits.reported(recipe.data.evaluate_on)[1]):
            if samples is not None:
                self.tested(samples)  # now rather than after the first epoch

    def embed_views(self) -> None:
        """Compute the features of the views to train on, unless nothing is trained."""
        if self.recipe.method.name not in methods.UNTRAINED:
            self.features = self.frozen.of_views(self.samples, self.cached)

    def of_stage(self, recipe: Recipe) -> Self:
        """Return the same images with the views of an earlier stage."""
        other = self.with_recipe(recipe)
        other.views = views_of_recipe(recipe)
        other.cached = cached_kinds(other.views, recipe.train.cached_views)
        other.embed_views()
        return other

    def subset(self, rows: Indices) -> Self:
        """Return the same source with some of its training images."""
        part = copy(self)
        part.rows, part.labels = self.rows[rows], self.labels[rows]
        return part

    def with_recipe(self, recipe: Recipe) -> Self:
        """Return the same images for another recipe."""
        other = copy(self)
        other.recipe = recipe
        return other

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        labels = torch.from_numpy(self.labels)
        for indices, keys in plan(self.labels, epoch=epoch, start=start, **_order(self.recipe)):
            chosen = chosen_views(self.recipe.train.seed, epoch, keys, self.views, self.cached)
            yield Batch([self.features.take(self.rows[indices], one) for one in chosen], labels[indices])

    def as_tested(self, samples: Samples | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the features of a split, or of the training images, in the test view, and their labels, in blocks."""
        rows, labels = (self.rows, self.labels) if samples is None else (np.arange(len(samples)), samples.labels)
        features = self.tested(self.samples if samples is None else samples)
        for start in range(0, len(rows), BLOCK):
            own = rows[start : start + BLOCK]
            yield features.take(own, np.zeros_like(own)), torch.from_numpy(labels[start : start + BLOCK])

    @torch.no_grad()
    def seen(self, model: Classifier, samples: Samples | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        for features, labels in self.as_tested(samples):
            yield model.hidden(features.to(self.frozen.device)), labels

    def predictions(self, model: Classifier, samples: Samples) -> Ints:
        predictions: Ints = answers_of_features(
            lambda features: predicted(model.classify(features)), self.tested(samples), self.frozen.device
        )
        return predictions

    def answers(self, answer: Callable[[Tensor], Tensor], samples: Samples) -> Logits:
        """Return the logits (N, C) that `answer` computes from the features of a whole split."""
        return answers_of_features(lambda features: answer(features).float(), self.tested(samples), self.frozen.device)

    def tested(self, samples: Samples) -> Rows:
        """Return the features of images in the test view."""
        if samples not in self.known:
            self.known[samples] = self.frozen.of_tested(samples)
        return self.known[samples]


Source = ImageSource | FeatureSource  # where a learner gets its batches, and its predictions on validation data


def cached_kinds(views: Sequence[View], cached: int) -> list[View]:
    """Return the kind of each cached view: all the same, or alternating between kinds."""
    kinds = list(dict.fromkeys(views))
    if cached < len(kinds):
        raise UserError(
            f"{len(kinds)} different views need at least {len(kinds)} cached views, got {cached}",
            f"--set train.cached_views={2 * len(kinds)}, or the same view twice: --set views.second={views[0].name}",
        )
    return [kinds[k % len(kinds)] for k in range(cached)]


def chosen_views(seed: int, epoch: int, keys: Indices, views: Sequence[View], cached: Sequence[View]) -> list[Indices]:
    """Return the cached view of each image, for each view of a batch; two views of the same kind get different ones.

    The choice depends only on seed, epoch and key: they shuffle the cached views of an image, and views of the same
    kind take the first, the second and so on.
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
def answers_of_features(answer: Callable[[Tensor], Tensor], features: Rows, device: torch.device) -> NDArray[Any]:
    """Apply `answer` to cached features (N, F). Each process computes its share, and all get the whole."""
    mine = np.array(distributed.own_share(len(features)), np.int64)
    parts = []
    for start in range(0, max(len(mine), 1), BLOCK):  # a process without a share returns an empty array
        rows = mine[start : start + BLOCK]
        parts.append(answer(features.take(rows, np.zeros_like(rows)).to(device)).cpu())
    answers: NDArray[Any] = distributed.in_order(torch.cat(parts), len(features)).numpy()
    return answers


def _order(recipe: Recipe) -> dict[str, Any]:
    """Return the arguments of `plan` that depend on the recipe and on the processes."""
    return {
        "batch_size": recipe.train.batch_size,
        "seed": recipe.train.seed,
        "sampler": recipe.train.sampler,
        "second": methods.SECOND_SAMPLER.get(recipe.method.name, ""),
        "rank": distributed.rank(),
        "world": distributed.world_size(),
    }


def views_of_recipe(recipe: Recipe) -> list[View]:
    """Return the views of a step: one, two, or for some methods three."""
    names = [name for name in (recipe.views.first, recipe.views.second) if name]
    if recipe.method.name in methods.THREE_VIEWS:
        names = [names[0], names[-1], names[-1]]
    return [view_of(recipe, name) for name in names]


def view_of(recipe: Recipe, name: str) -> View:
    views = recipe.views
    scale = (views.crop_scale[0], views.crop_scale[1]) if views.crop_scale else None
    return View(name, recipe.model.size, scale, views.ops, views.magnitude, views.flip)
