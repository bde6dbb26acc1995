"""Heads on cached features: the closed-form classifier, heads trained in memory, and logits of held-out images."""

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gpaco import methods
from gpaco.data.holdout import stratified_folds, stratified_subset
from gpaco.data.inspection import INSPECTION_LIMIT, digests, fingerprints
from gpaco.data.samples import Samples, Splits
from gpaco.errors import UserError
from gpaco.methods.decoupling import TauNorm
from gpaco.metrics.classification import summarize
from gpaco.models.classifier import Classifier
from gpaco.models.gaussian import Gaussian, fit_gaussian
from gpaco.recipes.settings import TWO_STAGES, Recipe
from gpaco.system import distributed
from gpaco.system.progress import Progress, Say, no_progress
from gpaco.tasks.classification.batches import BLOCK, FeatureSource, caches
from gpaco.tasks.classification.card import Card, build_head, describe
from gpaco.tasks.classification.feature_cache import Indices, Vectors
from gpaco.tasks.classification.learner import ClassificationLearner, Earlier
from gpaco.tasks.classification.logits import Logits
from gpaco.training.loop import fit

FOLDS = 5
_ENOUGH = 2000  # held-out images; more folds would only take time


class HeldOut(NamedTuple):
    """Logits of images from classifiers that were not trained on them."""

    labels: NDArray[np.int64]
    gaussian: Logits
    head: Logits | None  # None for a method without a head


def closed_form(source: FeatureSource) -> Gaussian:
    """Return the closed-form classifier of the training images."""
    classes = len(source.samples.classes)
    return fit_gaussian(source.as_tested, source.frozen.width, classes).to(source.frozen.device)


def first_result(learner: ClassificationLearner, source: FeatureSource, say: Say) -> Gaussian:
    """Fit the closed-form classifier and print its accuracy: the first result of a run."""
    recipe, card = learner.recipe, learner.card
    gaussian = closed_form(source)
    split, samples = learner.splits.reported(recipe.data.evaluate_on)
    if samples is not None:
        logits = source.answers(gaussian, samples)
        found = summarize(logits, samples.labels, card.counts, card.classes, many=card.many, few=card.few)
        few = "" if found["few"] is None else f", {100 * found['few']:.1f}% of the few-shot classes"
        say(f"closed-form classifier: {100 * found['top1']:.1f}% of {len(samples):,} {split} images right{few}")
    return gaussian


def check_closed_form(recipe: Recipe) -> None:
    """Raise an error if a closed-form method is asked to train layers."""
    if recipe.method.name in methods.CLOSED_FORM and not caches(recipe):
        raise UserError(f"{recipe.method.name} does not train: it is computed from features", "leave out --train")


def fit_head(
    recipe: Recipe, splits: Splits, card: Card, source: FeatureSource, device: torch.device, before: Earlier
) -> Classifier:
    """Train a head on the features of `source`, in memory only, and before it the earlier stages that train heads."""
    weights = {} if before.stages else before.weights
    for stage in (*before.stages, recipe):
        torch.manual_seed(stage.train.seed)
        own = card if stage is recipe else describe(stage, splits)
        head = build_head(own, source.frozen.width, deepcopy(source.before))
        draw_centers(head, stage)
        carry(head, weights, stage.method.name)
        most = len(splits.train) - len(splits.train) % distributed.world_size()
        same = replace(stage, train=replace(stage.train, batch_size=min(stage.train.batch_size, most)))
        shown = source.with_recipe(same) if stage is recipe else source.of_stage(same)
        learner = ClassificationLearner(same, splits, head, own, shown, select=False)
        learner.prepare(device)
        fit(learner, None, device)
        weights = head.state_dict()
    return head.eval()


def draw_centers(model: Classifier, stage: Recipe) -> None:
    """Draw the weights of a linear classifier from a truncated normal distribution, unless `model.head_std` is 0."""
    std, method = stage.model.head_std, stage.method.name
    if std and isinstance(model.centers, nn.Linear):
        nn.init.trunc_normal_(model.centers.weight, std=std)
        nn.init.zeros_(model.centers.bias)
    elif std and method not in TWO_STAGES:  # the first stage of those has a linear one
        raise UserError(
            f"the classifier of {method} is not linear and has its own initialization", "leave out model.head_std"
        )


def carry(model: Classifier, weights: Mapping[str, Tensor], method: str) -> None:
    """Load the tensors that a stage takes over from the previous one: those of the same name and shape.

    See `methods.carried`. Raise an error if a method that needs an earlier stage would get random or missing layers.
    """
    mine = model.state_dict()
    renamed = {methods.carried(method, name): tensor for name, tensor in weights.items()}
    same = {name: one for name, one in renamed.items() if name in mine and one.shape == mine[name].shape}
    if method in TWO_STAGES:
        loose = ("", "backbone", "centers", "projector", "prototypes")
        needed = [name for name in mine if name.startswith(("backbone.", "hidden."))]
        needed += [name for name in renamed if name.partition(".")[0] not in loose]
        if method in methods.NEED_CLASSIFIER:
            needed.append(methods.carried(method, "centers.weight"))
        if lost := [name for name in needed if name not in same]:
            raise UserError(
                f"{method} cannot continue the network of the previous stage: {lost[0]} differs or is missing",
                "use the same model in both stages, and start from a method without branches: method.first=ce",
            )
    model.load_state_dict(mine | same)


def held_out_logits(
    learner: ClassificationLearner,
    device: torch.device,
    progress: Progress = no_progress,
    gaussian: Logits | None = None,
) -> HeldOut:
    """Train on all folds except one and return the logits of that one, for as many folds as needed.

    Args:
        gaussian: logits of the closed form from an earlier call; they do not depend on settings.
    """
    recipe, source = learner.recipe, learner.source
    if not isinstance(source, FeatureSource):
        raise TypeError("only heads on cached features are cross-validated")
    if isinstance(learner.extra, TauNorm):  # the folds have no validation data to select it on
        recipe = replace(recipe, method=replace(recipe.method, norm_tau=float(learner.extra.tau)))
    trains = recipe.method.name not in methods.CLOSED_FORM
    prints = source.frozen.digests() if isinstance(source.frozen, Vectors) else _fingerprints(source.samples)
    own = None if prints is None else [prints[row] for row in source.rows]
    folds = stratified_folds(source.labels, FOLDS, recipe.data.seed, digests=own)
    used = folds_used(len(source.labels))
    classes = len(learner.card.classes)
    samples = source.samples
    if samples.images is not None:  # a head needs no pixels, and each fold would copy them
        samples = replace(samples, images=np.empty((len(samples), 0, 0, 3), np.uint8))
    most = max(_ENOUGH, 2 * classes)  # per fold: with many classes, their logits would fill the memory
    nothing = np.zeros((0, classes), np.float32)  # the result if no class has two images
    labels, gaussians, heads = [np.zeros(0, np.int64)], [nothing], [nothing]
    for number in range(used):
        rest, held = (np.flatnonzero(mask) for mask in (folds != number, folds == number))
        if not len(held):
            break
        progress(number, used)
        held = held[stratified_subset(source.labels[held], most, recipe.data.seed)]
        batch_size = min(recipe.train.batch_size, len(rest) - len(rest) % distributed.world_size())
        small = replace(recipe, train=replace(recipe.train, batch_size=batch_size))
        part = source.subset(rest).with_recipe(small)
        labels.append(source.labels[held])
        if gaussian is None:
            gaussians.append(_answers(closed_form(part), source, held))
        if trains:
            splits = replace(learner.splits, train=samples.subset(rest), val=None)
            head = fit_head(small, splits, learner.card, part, device, learner.before)
            heads.append(_answers(head.classify, source, held))
    progress(used, used)
    gaussian = np.concatenate(gaussians) if gaussian is None else gaussian
    return HeldOut(np.concatenate(labels), gaussian, np.concatenate(heads) if trains else None)


@lru_cache(maxsize=1)
def _fingerprints(samples: Samples) -> list[str] | None:
    if samples.images is not None:
        return digests(samples)
    return None if samples.paths is None or len(samples) > INSPECTION_LIMIT else fingerprints(samples.paths)


def without_small_classes(held: HeldOut, counts: NDArray[np.int64]) -> HeldOut:
    """Return only held-out images of classes with at least as many training images as folds, if enough classes remain.

    A fold holds out up to half of the images of a smaller class, so its logits come from a worse classifier than the
    one to calibrate, which would end up underconfident. But a few classes say nothing about the others: at least two,
    and half of all, must remain.
    """
    present = np.unique(held.labels)
    remaining = int((counts[present] >= FOLDS).sum())
    if remaining < 2 or 2 * remaining < len(present):
        return held
    kept = counts[held.labels] >= FOLDS
    return HeldOut(held.labels[kept], held.gaussian[kept], None if held.head is None else held.head[kept])


def folds_used(images: int) -> int:
    """Return how many of the five folds to hold out in turn to get enough images."""
    return min(FOLDS, math.ceil(FOLDS * _ENOUGH / images))


def trained_logits(learner: ClassificationLearner, gaussian: Gaussian, trained: Callable[[Tensor], Tensor]) -> HeldOut:
    """Return the logits of the training images themselves, if no others are available."""
    source = learner.source
    if not isinstance(source, FeatureSource):
        raise TypeError("only heads on cached features have such logits")
    rows = np.arange(len(source.labels))
    trains = learner.recipe.method.name not in methods.CLOSED_FORM
    head = _answers(trained, source, rows) if trains else None
    return HeldOut(source.labels, _answers(gaussian, source, rows), head)


@torch.inference_mode()
def _answers(answer: Callable[[Tensor], Tensor], source: FeatureSource, rows: Indices) -> Logits:
    features, parts = source.tested(source.samples), list[Logits]()
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        below = features.take(source.rows[block], np.zeros_like(block)).to(source.frozen.device)
        parts.append(answer(below).float().cpu().numpy())
    return np.concatenate(parts)
