"""Methods that continue what another method, or an existing run, has trained: their stages and where they start."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpaco import methods
from gpaco.errors import UserError, nearest
from gpaco.models.lora import merged
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import METHODS, TWO_STAGES, Recipe, Stage
from gpaco.tasks.classification.card import Card
from gpaco.training.card import read_card
from gpaco.training.run import as_run, is_run, select_checkpoint, weights_of
from gpaco.training.task import Before

# Epochs of the second stage, as a share of the first: as published for ImageNet-LT.
_SHARES = {"crt": 10 / 90, "lws": 5 / 90, "mislas": 10 / 180, "oltr": 2.0}


def starts_from_run(recipe: Recipe) -> bool:
    """Whether the first stage is an existing run."""
    return recipe.method.name in TWO_STAGES and recipe.method.first not in METHODS


def with_first_run(recipe: Recipe, given: set[str]) -> Recipe:
    """Return the recipe with the model of the run that it starts from; raise an error if there is no such run."""
    if not starts_from_run(recipe):
        return recipe
    first = recipe.method.first
    if not is_run(Path(first)):
        raise UserError(
            f"method.first is a method or a run, and {first!r} is neither{nearest(first, METHODS)}",
            f"methods are {', '.join(METHODS)}",
        )
    model = asdict(recipes.stages(as_run(first).recipe)[-1].model)
    changes = {f"model.{key}": value for key, value in model.items() if f"model.{key}" not in given}
    part = "head" if recipe.train.part == "auto" else recipe.train.part
    changes |= {"method.first": str(Path(first).absolute()), "train.part": part}
    return recipes.fill(recipe, changes)


def first_run(stage: Recipe, classes: Sequence[str]) -> Before | None:
    """Return the weights of the run that a stage starts from; None if it does not start from a run."""
    if not starts_from_run(stage):
        return None
    run = as_run(stage.method.first)
    found = select_checkpoint(run)
    card = read_card(Card, found.state["card"], str(found.path))
    if card.classes != tuple(classes):
        raise UserError(f"{run.folder} has other classes than the data", "start from a run on the same data")
    return Before(merged(weights_of(run, found, card.backbone)), card.weights)


def with_default_stages(recipe: Recipe) -> Recipe:
    """Add the stages that a method has, unless the recipe gives them.

    SupCon gets a stage that trains a classifier; a method that continues another one gets that as its first stage.
    """
    *_, last = recipes.stages(recipe)
    name = last.method.name
    if name not in methods.WITHOUT_CLASSIFIER:
        return replace(recipe, stage=_two(recipe)) if name in TWO_STAGES and not recipe.stage else recipe
    if recipe.stage:
        raise UserError(
            f"the last stage, {last.name!r}, trains features and no classifier ({name})",
            "add a stage that does, for example with method.name = 'balanced-softmax' and train.part = 'head'",
        )
    linear = {"method.name": "balanced-softmax", "train.part": "head", "train.epochs": max(recipe.train.epochs // 3, 1)}
    return replace(recipe, stage=(Stage("features"), _stage("classifier", linear | _PLAIN)))


_PLAIN: dict[str, Any] = {"views.second": "", "views.erase": 0.0, "method.mixup": 0.0, "method.cutmix": 0.0}


def _two(recipe: Recipe) -> tuple[Stage, ...]:
    """Return the stages of a method that continues another one; only the second if that is an existing run."""
    settings = recipe.method
    name, epochs = settings.name, recipe.train.epochs
    second: dict[str, Any] = {"train.part": "all" if name == "oltr" else "head", "train.sampler": "balanced"}
    second |= {"views.second": "", "views.erase": 0.0} | {
        "schedule.name": "cosine",
        "schedule.warmup": 0.0,
        "schedule.steps": (),
    }
    second |= {f"method.{key}": 0.0 for key in ("mixup", "cutmix") if getattr(settings, key)}
    if name in methods.UNTRAINED:
        second |= {"train.epochs": 1, "train.sampler": "shuffle"}
    else:
        second["train.epochs"] = max(round(_SHARES[name] * epochs), 1)
    if name == "mislas":
        second["train.cached_views"] = 0
    if starts_from_run(recipe):
        return (_stage("classifier", second),)
    if settings.first in TWO_STAGES:
        raise UserError(f"{settings.first} has two stages itself", "start from another method, such as ce or gpaco")
    first: dict[str, Any] = {"method.name": settings.first}
    if name == "mislas":
        first["method.mixup"] = settings.first_mixup
    return _stage("features", first), _stage("classifier", second)


def _stage(name: str, changes: dict[str, Any]) -> Stage:
    return Stage(name, tuple((*key.split("."), value) for key, value in changes.items()))
