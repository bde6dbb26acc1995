"""Default settings chosen from the data."""

import math
import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpaco import methods
from gpaco.data.samples import Samples, Splits
from gpaco.models import backbones
from gpaco.models.backbones import NONE
from gpaco.models.weights.packaged import PACKAGE, package_of
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import TWO_STAGES, Recipe, used
from gpaco.system import distributed
from gpaco.system.progress import Say
from gpaco.system.words import in_lines
from gpaco.tasks.classification.image_sizes import SMALL, usual_side
from gpaco.tasks.classification.priors import no_validation
from gpaco.tasks.classification.start import BETTER
from gpaco.tasks.classification.two_stages import with_default_stages

_LONG = 10_000  # steps after which small images are strongly augmented; see docs/decisions.md
_LEVEL = 17_000  # steps up to which GPaCo from scratch did not beat balanced softmax overall: docs/benchmarks.md

# A head on cached features, as measured on long-tailed pets and CIFAR-100: docs/defaults.md, "Heads on photos".
HEAD: dict[str, Any] = {
    "model.hidden": 512,
    "optimizer.weight_decay": 5e-4,
    "train.batch_size": 128,
    "train.cached_views": 4,
    "train.checkpoint_every": 10,
    "views.first": "plain",  # features were learned on whole images: strong augmentation hurts
    "views.second": "plain",
}
_POSITIVES = 90  # as the largest class of ImageNet-LT has in the paper's memory of 8192
_ALPHA, _SHARE = 0.05, 1 / 3  # of the paper; least share of a class center: docs/defaults.md, "Memory, alpha ..."
_HEAD_STEPS = 1_700  # more do not help on 10,000 images; small data sets need 60 epochs


def head_settings(counts: NDArray[np.int64]) -> dict[str, Any]:
    """Return the settings of a head on the features of so many images per class."""
    epochs = min(max(_HEAD_STEPS * HEAD["train.batch_size"] // max(int(counts.sum()), 1), 20), 60)
    return HEAD | {"train.epochs": epochs, "method.memory": memory_for(counts)}


def memory_for(counts: NDArray[np.int64]) -> int:
    """Return the size of the memory for so many images per class: a power of two, at most 8192.

    It holds at most about one embedding of each image, and `_POSITIVES` of the most frequent class: with more, class
    centers have nearly no weight beside the positives.

    >>> memory_for(np.array([5000, 3000, 50])), memory_for(np.array([40, 2])), memory_for(np.full(1000, 1300))
    (128, 32, 8192)
    """
    images = max(int(counts.sum()), 1)
    wanted = min(images, _POSITIVES * images / max(int(counts.max(initial=0)), 1))
    return int(min(8192, 2 ** round(math.log2(wanted))))


def alpha_for(counts: NDArray[np.int64], memory: int, batch_size: int) -> float:
    """Return the weight of a positive for so many images per class, with one significant digit: at most 0.05.

    At the optimum, a class center gets the share 1 / (1 + alpha P) of the target, with P positives among two views of
    the batch and the memory. For the most frequent class, that is about a third or more. Heads on frozen features do as
    well with 0.05.

    >>> alpha_for(np.array([6000, 3000, 60]), 128, 128), alpha_for(np.full(1000, 1300), 8192, 128)
    (0.008, 0.05)
    """
    share = float(counts.max(initial=0)) / max(int(counts.sum()), 1)
    positives = share * (2 * batch_size + memory)
    return min(_ALPHA, float(f"{(1 / _SHARE - 1) / max(positives, 1):.0e}"))


def suggest(recipe: Recipe, given: set[str], samples: Samples, *, gpu: bool = False) -> dict[str, Any]:
    """Return settings for these training images by "section.key": model, sizes, epochs, memory, alpha, views, rate.

    They depend on the number of images, their typical size, whether they are in memory, the part to train, and `gpu`.
    The learning rate depends on a given batch size, and so do the epochs, except those of a head; views depend on a
    given number of steps, alpha on a given batch size and memory.
    """
    images, side = len(samples), usual_side(samples)
    small = side <= SMALL
    batch_size = recipe.train.batch_size if "train.batch_size" in given else None
    epochs = recipe.train.epochs if "train.epochs" in given else None
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
        first, second = ("cifar_regular", "cifar_aug") if samples.paths is None else ("rand", "sim")
    found: dict[str, Any] = {
        "model.name": model,
        "model.size": size,
        "train.batch_size": batch_size,
        "train.epochs": epochs,
        "method.memory": memory_for(samples.counts),
        "views.first": first,
        "views.second": second,
    }
    rate = 0.05 if small else 0.04  # per 128 images, as released for CIFAR and ImageNet-LT
    if recipe.train.part == "head":
        found |= head_settings(samples.counts)
        if recipe.method.name == "lift":
            found["model.hidden"] = 0  # its centers start as means of the features of the backbone
        rate = 0.05
    if package := package_of(recipe.model.name) if recipe.model.weights == PACKAGE else None:
        found |= {"model.size": package.size, "model.resize": package.resize}
    elif recipe.model.weights != NONE:
        found["model.size"] = BETTER.get(recipe.model.name) or backbones.usual_size(recipe.model.name) or size
    if "memory" not in used(recipe.method.name, recipe.method.first):
        found.pop("method.memory")
    if recipe.method.name in methods.CLOSED_FORM:
        found = {key: value for key, value in found.items() if key in ("model.name", "model.size", "model.resize")}
        return found | {"train.epochs": 1, "views.first": "plain", "views.second": ""}
    shown = min(recipe.train.batch_size, images) if "train.batch_size" in given else found["train.batch_size"]
    if "alpha" in used(recipe.method.name, recipe.method.first) and recipe.train.part != "head":
        memory = recipe.method.memory if "method.memory" in given else found["method.memory"]
        found["method.alpha"] = alpha_for(samples.counts, memory, shown)
    return found | {"optimizer.lr": round(rate * shown / 128, 5)}


def add_stages(recipe: Recipe, say: Say) -> Recipe:
    """Add the stages of a method, and print the settings of each."""
    whole = with_default_stages(recipe)
    if whole.stage != recipe.stage:
        each = {
            one.name: ", ".join(f"{section}.{key} = {recipes.as_given(value)}" for section, key, value in one.changes)
            for one in whole.stage
        }
        text = "; ".join(f"{name}: {changes or 'as is'}" for name, changes in each.items())
        say(f"stages: {text}  (--set stage.NAME.KEY=VALUE changes one)")
    return whole


def resolve(recipe: Recipe, given: set[str], splits: Splits, device: torch.device, say: Say) -> Recipe:
    """Return the recipe with unset settings chosen from the data, and print them."""
    if recipe.method.tune_prior and splits.val is None:
        raise no_validation()
    guesses = suggest(recipe, given, splits.train, gpu=device.type != "cpu")
    few_cores = device.type == "cpu" and (os.cpu_count() or 1) <= 2  # workers take them from the network
    guesses["train.workers"] = 0 if few_cores or splits.train.images is not None else 2
    if recipe.method.name in TWO_STAGES:
        guesses["method.fuse"] = False  # as published
    still_open = {
        "model.name": recipe.model.name == "auto",
        "model.size": recipe.model.size == 0,
        "views.first": recipe.views.first == "auto",
        "views.second": recipe.views.second == "auto",
        "train.workers": recipe.train.workers < 0,
    }
    chosen = given | {key for key in ("model.name", "model.size") if not still_open[key]}
    guesses = {key: guess for key, guess in guesses.items() if key not in chosen or still_open.get(key, False)}
    if "model.size" not in guesses:
        guesses.pop("model.resize", None)
    recipe = recipes.fill(recipe, guesses)
    if "schedule.warmup" not in given and recipe.schedule.warmup > recipe.train.epochs / 6:
        guesses["schedule.warmup"] = recipe.train.epochs // 6
    most = len(splits.train) - len(splits.train) % distributed.world_size() or len(splits.train)
    if recipe.train.batch_size > most:  # at most one batch of all images
        guesses["train.batch_size"] = most
    if guesses:
        say("settings for this data (--set KEY=VALUE changes one):")
        for line in in_lines([f"{key} = {recipes.as_given(guess)}" for key, guess in guesses.items()]):
            say(line)
    recipe = add_stages(recipes.fill(recipe, guesses), say)
    scratch = recipe.train.part == "all" and recipe.model.weights == NONE
    steps = recipe.train.epochs * len(splits.train) / recipe.train.batch_size
    if scratch and "views.first" in guesses and 16 < usual_side(splits.train) <= SMALL:
        words = "short, and strong ones would cost accuracy" if steps < _LONG else "long enough for strong ones"
        say(f"views: {recipe.views.first}, since {steps:,.0f} steps are {words}")
    if scratch and recipe.method.name == "gpaco" and "method.name" not in given and steps < _LEVEL:
        say(f"method: up to {_LEVEL:,} steps from scratch, GPaCo was better on rare classes in our benchmarks,")
        say("  but not overall; also try --method balanced-softmax")
    large = [stage.name for stage in recipes.stages(recipe) if stage.train.batch_size > most]
    return recipes.change(recipe, {f"stage.{name}.train.batch_size": most for name in large})
