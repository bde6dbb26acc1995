"""Searches for the settings of a head on cached features, by cross-validation within a time budget."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpaco import methods
from gpaco.errors import Diverged, UserError
from gpaco.metrics.classification import summarize
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.files import write_atomic
from gpaco.system.progress import Say, as_progress
from gpaco.system.words import plural
from gpaco.tasks.classification.batches import caches
from gpaco.tasks.classification.calibration import fit_calibration, for_uniform
from gpaco.tasks.classification.card import Card
from gpaco.tasks.classification.heads import HeldOut, held_out_logits, without_small_classes
from gpaco.tasks.classification.learner import ClassificationLearner
from gpaco.tasks.classification.logits import Logits
from gpaco.training.run import TUNING

# Settings to search, with the lowest and highest factor on the default value.
_ALL = {"optimizer.lr": (0.1, 4.0), "optimizer.weight_decay": (0.1, 10.0)}
_CONTRASTIVE = {"method.alpha": (0.1, 4.0), "method.temperature": (0.25, 2.0)}
_MOST = 200  # candidates


def check_tunable(recipe: Recipe) -> None:
    """Raise an error if a search is requested for a model that is too slow to train, or has nothing to search."""
    if not recipe.train.tune:
        return
    if len(recipe.stage) > 1:
        raise UserError(f"--tune does not work with the stages of {recipe.method.name}", "leave out --tune")
    (stage,) = recipes.stages(recipe)
    if stage.method.name in methods.UNTRAINED:
        raise UserError(f"{stage.method.name} has no settings to tune", "leave out --tune")
    if not caches(stage):
        raise UserError("--tune searches the settings of a head that trains on cached features", "add --train head")


def candidates(recipe: Recipe) -> list[dict[str, float]]:
    """Return the candidates by "section.key": the settings of the recipe, then random ones with a fixed seed."""
    ranges = _ALL if recipe.method.name not in methods.PARAMETRIC else _ALL | _CONTRASTIVE
    if recipe.method.center_temperature:  # it is part of the network, which all candidates share
        ranges = {key: factors for key, factors in ranges.items() if key != "method.temperature"}
    usual = {key: getattr(getattr(recipe, key.split(".")[0]), key.split(".")[1]) for key in ranges}
    draws = np.random.RandomState(0).uniform(size=(_MOST - 1, len(ranges)))
    found = [usual]
    for row in draws:
        factors = [low * (high / low) ** u for (low, high), u in zip(ranges.values(), row, strict=True)]
        values = {key: float(f"{usual[key] * f:.3g}") for key, f in zip(ranges, factors, strict=True)}
        found.append(values | {"optimizer.lr": max(values["optimizer.lr"], recipe.schedule.min_lr)})
    return found


def tuned_settings(folder: Path, learner: ClassificationLearner, device: torch.device, say: Say) -> dict[str, float]:
    """Return the settings with the highest macro recall on held-out training images.

    The search is stored in the folder of the run with all candidates; a resumed run reads it.
    """
    path, recipe, card = folder / TUNING, learner.recipe, learner.card
    (known,) = distributed.agree(int(path.is_file()))
    if known:
        chosen: dict[str, float] = json.loads(path.read_text())["chosen"]
        return chosen
    began, budget = time.monotonic(), 60 * recipe.train.tune
    tried: list[dict[str, Any]] = []
    gaussian: Logits | None = None
    progress = as_progress(say, "tuning, seconds")
    for attempts, values in enumerate(candidates(recipe)):
        # Stop if another candidate, with the average time so far, would exceed the budget.
        (late,) = distributed.agree(int(attempts > 0 and (time.monotonic() - began) * (1 + 1 / attempts) > budget))
        if late:
            break
        candidate = recipes.fill(recipe, values)
        source = learner.source.with_recipe(candidate)
        trial = ClassificationLearner(
            candidate, learner.splits, learner.model, card, source, select=False, before=learner.before
        )
        try:
            held = held_out_logits(trial, device, gaussian=gaussian)
        except Diverged:
            if not tried:  # the settings of the recipe: training would diverge too
                raise
            continue
        if not len(held.labels):
            raise UserError("no class has a second training image to hold out", "leave out --tune")
        gaussian = held.gaussian
        if held.head is not None and np.isfinite(held.head).all():
            logits = used_logits(recipe, card, held)
            found = summarize(logits, held.labels, card.counts, card.classes, many=card.many, few=card.few)
            tried.append({"settings": values, "macro": found["macro"], "top1": found["top1"]})
        elif not tried:
            raise Diverged("the logits of held-out images are not finite", "lower the learning rate: --lr")
        progress(round(min(time.monotonic() - began, budget)), round(budget))
    best = max(tried, key=lambda one: one["macro"])
    if distributed.rank() == 0:
        write_atomic(
            path, json.dumps({"minutes": recipe.train.tune, "chosen": best["settings"], "tried": tried}, indent=1)
        )
    distributed.barrier()
    if len(tried) == 1:
        took = time.monotonic() - began
        say(f"no time left to search: one trial took {took:.0f} of {budget:.0f} seconds")
        return dict(best["settings"])
    words = ", ".join(f"{key} = {value:g}" for key, value in best["settings"].items())
    gain = 100 * (best["macro"] - tried[0]["macro"])
    number = plural(len(tried), "candidate")
    say(f"tuned on held-out training images, {number}: {words}; macro recall there {gain:+.1f} points")
    return dict(best["settings"])


def used_logits(recipe: Recipe, card: Card, held: HeldOut) -> Logits:
    """Return the logits of held-out images as the run will use them: the head alone, or plus the closed form."""
    if held.head is None or not recipe.method.fuse:
        return held.gaussian if held.head is None else held.head
    large = without_small_classes(held, np.asarray(card.counts))
    factors = fit_calibration(card, large.labels, large.head, large.gaussian)
    logits: Logits = factors.head * for_uniform(card, held.head) + factors.gaussian * held.gaussian
    return logits


def retuned(learner: ClassificationLearner, values: dict[str, Any]) -> ClassificationLearner:
    """Return the learner with new settings, before its first step."""
    recipe = recipes.fill(learner.recipe, values)
    source = learner.source.with_recipe(recipe)
    torch.manual_seed(recipe.train.seed)  # a memory that starts random does not depend on the search
    other = ClassificationLearner(
        recipe, learner.splits, learner.model, learner.card, source, select=learner.select, before=learner.before
    )
    other.gaussian = learner.gaussian
    return other
