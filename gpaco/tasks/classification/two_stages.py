"""Methods that continue from a model trained by another method, or from an existing run: their stages and start."""

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpaco import methods
from gpaco.data.samples import Splits
from gpaco.errors import UserError, nearest
from gpaco.models.lora import merged
from gpaco.models.networks import WHOLE, Network
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import METHODS, TWO_STAGES, Recipe, Stage, used
from gpaco.system.progress import Say
from gpaco.tasks.classification.batches import caches, no_cached_features
from gpaco.tasks.classification.card import Card
from gpaco.training.card import read_card
from gpaco.training.run import as_run, check_split, is_run, select_checkpoint, unfinished, weights_of
from gpaco.training.task import Before

# Epochs of the second stage as published for ImageNet-LT, after a first stage of at least _LONG; oltr trains twice as
# long as in the first. After fewer epochs, ten are needed (mislas on digits: accuracy on rare classes is 61% with two,
# 76% with ten).
_EPOCHS = {"crt": 10, "lws": 5, "mislas": 10}
_LONG = 90
_SCHEDULE: dict[str, Any] = {"schedule.name": "cosine", "schedule.warmup": 0.0, "schedule.steps": ()}
_ANOTHER = "start from another method: --set method.first=ce"


def starts_from_run(recipe: Recipe) -> bool:
    """Return whether the first stage is an existing run."""
    return recipe.method.name in TWO_STAGES and recipe.method.first not in METHODS


def with_first_run(recipe: Recipe, given: set[str]) -> tuple[Recipe, set[str]]:
    """Return the recipe with the model and the images of the run that it starts from, if any.

    Also return the given settings, which then include these. Raise an error if the run does not exist.
    """
    if not starts_from_run(recipe):
        return recipe, given
    first = recipe.method.first
    if not is_run(Path(first)):
        raise UserError(
            f"method.first must be a method or a run, and {first!r} is neither{nearest(first, METHODS)}",
            f"methods are {', '.join(METHODS)}",
        )
    before = recipes.stages(as_run(first).recipe)[-1]
    known: dict[str, Any] = {f"model.{key}": value for key, value in asdict(before.model).items()}
    own = ("validation", "seed", "long_tail") if before.data.path == recipe.data.path else ("validation", "seed")
    known |= {f"data.{key}": getattr(before.data, key) for key in own}
    changes = {key: value for key, value in known.items() if key not in given}
    usual = "all" if recipe.method.name == "oltr" else "head"
    part = usual if recipe.train.part == "auto" else recipe.train.part
    changes |= {"method.first": os.path.abspath(first), "train.part": part}
    return recipes.fill(recipe, changes), given | set(known)


def first_run(stage: Recipe, splits: Splits, say: Say) -> Before | None:
    """Return the weights of the run that a stage starts from, or None; warn if it has not finished."""
    if not starts_from_run(stage):
        return None
    run = as_run(stage.method.first)
    if line := unfinished(run):
        say(line)
    found = select_checkpoint(run)
    card = read_card(Card, found.state["card"], str(found.path))
    if card.classes != splits.classes:
        raise UserError(f"{run.folder} and the data have different classes", "start from a run on the same data")
    if stage.method.name in methods.NEED_CLASSIFIER:
        if not card.classifies:
            raise _no_classifier(stage.method.name, str(run.folder))
        _check_linear(stage.method.name, str(run.folder), card.network)
    return Before(merged(weights_of(run, found)), card.weights)


def check_first_run(recipe: Recipe, splits: Splits) -> None:
    """Raise an error if the run that a recipe starts from has other held-out images: it may have trained on these."""
    if not starts_from_run(recipe):
        return
    for name in ("val", "test"):
        try:
            check_split(as_run(recipe.method.first), splits, name)
        except UserError as error:
            raise UserError(
                error.cause, "hold out the same images as that run: use its --validation, --long-tail and data.seed"
            ) from None


def with_default_stages(recipe: Recipe) -> Recipe:
    """Add the stages of a method, unless the recipe has its own.

    SupCon gets a stage that trains a classifier; a method that continues another one gets that as its first stage.
    Stages of the recipe with the same names and no methods are changes to these.
    """
    *_, last = recipes.stages(recipe)
    name, own = last.method.name, recipe.stage
    if name not in (*TWO_STAGES, *methods.WITHOUT_CLASSIFIER):
        return recipe
    changes = {f"stage.{stage.name}.{section}.{key}": value for stage in own for section, key, value in stage.changes}
    if not any(key.endswith(".method.name") for key in changes):
        added = _two(recipe) if name in TWO_STAGES else _with_classifier(recipe)
        if {stage.name for stage in own} <= {stage.name for stage in added}:
            return recipes.change(replace(recipe, stage=added), changes)
    if name in methods.WITHOUT_CLASSIFIER:
        raise UserError(
            f"the last stage, {last.name!r}, trains features but no classifier ({name})",
            "add a stage with a classifier, for example with method.name = 'balanced-softmax' and train.part = 'head'",
        )
    return recipe


def _with_classifier(recipe: Recipe) -> tuple[Stage, ...]:
    """Return the stages of a method that trains only features."""
    linear = {"method.name": "balanced-softmax", "train.part": "head", "train.epochs": max(recipe.train.epochs // 3, 1)}
    plain = {"views.second": "", "views.erase": 0.0, "method.mixup": 0.0, "method.cutmix": 0.0}
    return Stage("features"), _stage("classifier", linear | plain | _SCHEDULE)


def _two(recipe: Recipe) -> tuple[Stage, ...]:
    """Return the stages of a method that continues another one; only the second if the first is an existing run."""
    settings = recipe.method
    name = settings.name
    before = recipes.stages(as_run(settings.first).recipe)[-1] if starts_from_run(recipe) else recipe
    epochs = before.train.epochs
    second: dict[str, Any] = {"train.part": recipe.train.part if name == "oltr" else "head"}
    second |= {"train.sampler": "balanced", "views.second": "", "views.erase": 0.0, **_SCHEDULE}
    second |= {f"method.{key}": 0.0 for key in ("mixup", "cutmix") if getattr(settings, key)}
    if name in methods.UNTRAINED:
        second |= {"train.epochs": 1, "train.sampler": "shuffle"}
    else:
        short = 2 * epochs if name == "oltr" else min(epochs, 10)
        second["train.epochs"] = _EPOCHS.get(name, short) if epochs >= _LONG else short
    if name == "mislas":
        second["train.cached_views"] = 0
    if starts_from_run(recipe):
        return (_stage("classifier", second),)
    first: dict[str, Any] = {"method.name": settings.first}
    if name == "mislas":
        first["method.mixup"] = settings.mixup or settings.first_mixup
    _check_first(recipe, bool(first.get("method.mixup")))
    return _stage("features", first), _stage("classifier", second)


def _check_first(recipe: Recipe, mixup: bool) -> None:
    """Raise an error before training if the method cannot continue that of the first stage."""
    name, first = recipe.method.name, recipe.method.first
    if first in TWO_STAGES:
        raise UserError(f"{first} itself has two stages", _ANOTHER)
    if first in methods.CLOSED_FORM:
        raise UserError(f"{first} trains no network that {name} could continue", _ANOTHER)
    if first in methods.WITHOUT_CLASSIFIER and name in methods.NEED_CLASSIFIER:
        raise _no_classifier(name, first)
    network = methods.network(replace(recipe, method=replace(recipe.method, name=first)))
    if network.body in WHOLE:
        raise UserError(f"{first} has a network with branches, which {name} cannot continue", _ANOTHER)
    if name in methods.NEED_CLASSIFIER:
        _check_linear(name, first, network)
    if mixup and "mixup" not in used(first):
        raise UserError(
            f"{name} starts with mixup, which {first} does not support", f"{_ANOTHER}, or method.first_mixup=0"
        )
    if name in methods.NEED_IMAGES and caches(recipe):
        raise no_cached_features(name)


def _check_linear(name: str, first: str, network: Network) -> None:
    """Raise an error if the first classifier is not linear: with its weights, a linear one would predict otherwise."""
    if network.head != "linear":
        raise UserError(f"{name} continues a linear classifier, and that of {first} is {network.head}", _ANOTHER)


def _no_classifier(name: str, first: str) -> UserError:
    return UserError(f"{name} continues a classifier, but {first} trains only features", _ANOTHER)


def _stage(name: str, changes: dict[str, Any]) -> Stage:
    return Stage(name, tuple((*key.split("."), value) for key, value in changes.items()))
