"""Default settings that suit the data."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gpaco import methods
from gpaco.data.images import BadImageError, describe_image
from gpaco.data.samples import Samples, Splits
from gpaco.errors import UserError
from gpaco.models import backbones
from gpaco.recipes import recipe as recipes
from gpaco.recipes.request import overrides
from gpaco.recipes.settings import Recipe, Stage
from gpaco.system.progress import Say
from gpaco.tasks.classification.priors import no_validation

_LOOKED_AT = 25  # files, for the typical size
_LONG = 10_000  # steps after which small images are strongly augmented; see docs/decisions.md


def suggest(
    splits: Splits, *, gpu: bool = False, batch_size: int | None = None, epochs: int | None = None
) -> dict[str, Any]:
    """Return settings for the data by "section.key": model, sizes, epochs, memory, views and learning rate.

    They depend on the typical size of the images, whether they are in memory, their number, and `gpu`. Epochs and rate
    depend on the batch size, views on the number of steps, if those are given.
    """
    images, side = len(splits.train), usual_side(splits.train)
    in_memory = splits.train.paths is None
    small = side <= 64
    if small:
        model = "resnet32" if gpu and side > 16 else "resnet8"
        size, most, steps = side, 128, 20_000 if gpu else 3_000
    else:
        model = "resnet50" if gpu else "resnet18"
        size, most, steps = min(224 if gpu else 128, side // 32 * 32), 64 if gpu else 32, 50_000 if gpu else 2_000
    power = 1 << max(images // 16, 1).bit_length() - 1  # of two, at most a sixteenth of the images
    batch_size = batch_size or min(most, max(8, power))
    epochs = epochs or min(max(math.ceil(steps * batch_size / max(images, 1)), 10), 200)
    if small and (side <= 16 or epochs * images / batch_size < _LONG):
        first, second = "plain", "plain"
    else:
        first, second = ("cifar_regular", "cifar_aug") if in_memory else ("rand", "sim")
    return {
        "model.name": model,
        "model.size": size,
        "train.batch_size": batch_size,
        "train.epochs": epochs,
        "method.memory": min(8192, 2 ** round(math.log2(max(images, 1)))),
        "views.first": first,
        "views.second": second,
        "optimizer.lr": round((0.05 if small else 0.04) * batch_size / 128, 5),  # as released for CIFAR and ImageNet-LT
    }


def usual_side(samples: Samples) -> int:
    """Return the median of the shorter side in pixels; of files, only a few are read."""
    if samples.images is not None:
        return min(int(side) for side in samples.images.shape[1:3])
    sides = []
    for i in np.unique(np.linspace(0, len(samples) - 1, _LOOKED_AT).astype(int)):
        try:
            facts = describe_image((samples.paths or ())[i])
        except BadImageError:
            continue
        sides.append(min(facts.width, facts.height))
    return int(np.median(sides)) if sides else 224


def resolve(recipe: Recipe, given: set[str], splits: Splits, device: torch.device, say: Say) -> Recipe:
    """Return the recipe with open settings filled in from the data; print each with the flag that overrides it."""
    if recipe.method.tune_prior and splits.val is None:
        raise no_validation()
    batch_size = recipe.train.batch_size if "train.batch_size" in given else None
    epochs = recipe.train.epochs if "train.epochs" in given else None
    guesses = suggest(splits, gpu=device.type != "cpu", batch_size=batch_size, epochs=epochs)
    guesses["train.workers"] = 0 if splits.train.images is not None else 2
    if recipe.model.weights:
        guesses["model.size"] = backbones.usual_size(recipe.model.name) or guesses["model.size"]
    if recipe.train.part == "head":  # features were learned on whole images: strong augmentation hurts
        guesses |= {"views.first": "plain", "views.second": "plain", "train.cached_views": recipe.train.cached_views}
    if recipe.method.name in methods.WITHOUT_PROJECTOR:
        guesses.pop("method.memory")
    still_open = {
        "model.name": recipe.model.name == "auto",
        "model.size": recipe.model.size == 0,
        "views.first": recipe.views.first == "auto",
        "views.second": recipe.views.second == "auto",
        "train.workers": recipe.train.workers < 0,
    }
    guesses = {key: guess for key, guess in guesses.items() if key not in given or still_open.get(key, False)}
    for key, guess in guesses.items():
        say(f"{key} = {guess}  ({overrides(key)} overrides)")
    recipe = recipes.change(recipe, guesses)
    if "schedule.warmup" not in given and recipe.schedule.warmup > recipe.train.epochs / 6:
        recipe = recipes.change(recipe, {"schedule.warmup": recipe.train.epochs // 6})
        say(f"schedule.warmup = {recipe.schedule.warmup:g}  ({overrides('schedule.warmup')} overrides)")
    if recipe.train.batch_size > len(splits.train):
        recipe = recipes.change(recipe, {"train.batch_size": len(splits.train)})
        say(f"train.batch_size = {len(splits.train)}: there are no more training images")
    return with_default_stages(recipe)


def with_default_stages(recipe: Recipe) -> Recipe:
    """Add a stage that trains a classifier if the method, SupCon, has none."""
    *_, last = recipes.stages(recipe)
    if last.method.name not in methods.WITHOUT_CLASSIFIER:
        return recipe
    if recipe.stage:
        raise UserError(
            f"the last stage, {last.name!r}, trains features and no classifier ({last.method.name})",
            "add a stage that does, for example with method.name = 'balanced-softmax' and train.part = 'head'",
        )
    linear = (
        ("method", "name", "balanced-softmax"),
        ("train", "part", "head"),
        ("train", "epochs", max(recipe.train.epochs // 3, 1)),
        ("views", "second", ""),
        ("views", "erase", 0.0),
        ("method", "mixup", 0.0),
        ("method", "cutmix", 0.0),
    )
    return replace(recipe, stage=(Stage("features"), Stage("classifier", linear)))
