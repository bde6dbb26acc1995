"""Classification as a task: prepares the data and the recipe, begins stages, finishes the run."""

from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Self

import numpy as np
import torch

from gpaco import methods
from gpaco.data.agreement import check_same_everywhere
from gpaco.data.samples import Samples, Splits
from gpaco.models import backbones
from gpaco.models.freezing import freeze
from gpaco.models.weights.packaged import PACKAGE, check_installed
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.system.progress import Say, quiet
from gpaco.tasks.classification.batches import FeatureSource, caches, check_pixels, check_projector, source_of
from gpaco.tasks.classification.card import build_model, describe
from gpaco.tasks.classification.defaults import resolve
from gpaco.tasks.classification.estimate import estimate_seconds, format_estimate
from gpaco.tasks.classification.heads import carry, check_closed_form, draw_centers, first_result
from gpaco.tasks.classification.learner import ClassificationLearner, Earlier
from gpaco.tasks.classification.results import write_results
from gpaco.tasks.classification.splits import check_tuning, held_out, read_splits
from gpaco.tasks.classification.start import choose_start
from gpaco.tasks.classification.tuning import check_tunable, retuned, tuned_settings
from gpaco.tasks.classification.two_stages import check_first_run, first_run, with_first_run
from gpaco.training import checkpoint
from gpaco.training.run import Run, frozen_backbone, has_begun
from gpaco.training.task import Before


@dataclass(frozen=True)
class Classification:
    """A recipe and its images, ready to train (see `training.task.Task`)."""

    recipe: Recipe
    splits: Splits
    device: torch.device
    say: Say

    @classmethod
    def prepare(cls, recipe: Recipe, given: set[str], folder: Path, device: torch.device, say: Say) -> Self:
        if recipes.stages(recipe)[-1].method.tune_prior:
            check_tuning(recipe)
        begun = has_begun(folder)
        recipe, given = with_first_run(recipe, given)
        splits = read_splits(recipe, say, folder)
        check_same_everywhere(splits)
        recipe = choose_start(recipe, given, splits.train, device, say)
        if recipe.model.weights == PACKAGE and not begun:
            check_installed(recipe.model.name)
        splits = held_out(splits, recipe, say, thorough=not begun, run=folder if begun else None)
        recipe = resolve(recipe, given, splits, device, say)
        if len(recipe.stage) > 1 and not recipe.train.features:  # shared by all stages
            recipe = recipes.fill(recipe, {"train.features": str(folder.absolute() / "features")})
        task = cls(recipe, splits, device, say)
        check_tunable(recipe)
        check_first_run(recipe, splits)
        *_, last = stages = recipes.stages(task.recipe)
        for stage in stages:
            check_pixels(stage)
            check_projector(stage, len(splits.train))
            check_closed_form(stage)
        if not begun:
            seconds = sum(estimate_seconds(stage, splits, device) for stage in stages)
            say(format_estimate(seconds, last, device))
        say(task.plan(last))
        return task

    @staticmethod
    def check_model(name: str, weights: str) -> None:
        backbones.check_name(name)
        if weights == PACKAGE:
            check_installed(name)

    def plan(self, stage: Recipe) -> str:
        """Return a line about the split to report on and the split that selects the epoch."""
        split, samples = self.splits.reported(stage.data.evaluate_on)
        what = f"{len(samples)} {split} images" if samples else "nothing"
        val = self.splits.val
        epoch = f"the best on {len(val)} val images" if val and self.selects(stage) else "the last"
        return f"metrics: on {what}; epoch: {epoch}"

    def begin(self, stage: Recipe, folder: Path, before: Before | None) -> ClassificationLearner:
        # The origin of pretrained weights is known if the run already has them: they are not loaded again.
        begun = bool(checkpoint.find(folder / "checkpoints"))
        if before is None:
            before = first_run(stage, self.splits, self.say)
        origin = before.origin if before else None
        if begun:
            stored = checkpoint.load(folder / "checkpoints", ()).state["card"]
            origin = stored["weights"]
        settings = stage.model
        torch.manual_seed(stage.train.seed)
        card = describe(stage, self.splits)
        model = build_model(card, settings.weights if origin is None else backbones.NONE)
        if origin is None:
            origin = backbones.origin(card.model, model.backbone, settings.weights)
        card = replace(card, weights=origin)
        draw_centers(model, stage)
        if before is not None:
            carry(model, before.weights, stage.method.name)
        if begun and stored["backbone"]:
            model.backbone.load_state_dict(frozen_backbone(folder, stored["backbone"]))
        if stage.train.part != "all":
            freeze(model, stage.train.part, lora_rank=stage.train.lora_rank)
        if stage.train.part == "head" and before is None and settings.weights == backbones.NONE:
            self.say("--weights none: this trains a head on the features of an untrained network")
        source, card = source_of(stage, self.splits, model, card, folder, self.device, self.say)
        heads = tuple(takewhile(lambda one: one.name != stage.name, recipes.stages(self.recipe)))
        earlier = Earlier(before.weights if before else {}, heads if all(map(caches, heads)) else ())
        learner = ClassificationLearner(
            stage, self.splits, model, card, source, select=self.selects(stage), before=earlier
        )
        if not begun:
            learner.prepare(self.device)
        if isinstance(source, FeatureSource):
            learner.gaussian = first_result(learner, source, self.say)
            source.embed_views()
        if stage.train.tune:
            learner = retuned(learner, tuned_settings(folder, learner, self.device, self.say))
        return learner

    def selects(self, stage: Recipe) -> bool:
        """Return whether validation data selects the epoch.

        It does not if the recipe uses the last epoch, reports on validation data, or trains no classifier.
        """
        possible = self.splits.selecting(stage.data.evaluate_on) is not None
        return possible and stage.train.select == "best" and stage.method.name not in methods.WITHOUT_CLASSIFIER

    def finish(self, run: Run, learner: ClassificationLearner) -> None:
        write_results(run, learner.recipe, self.splits, self.device, self.say, learner=learner)

    def with_recipe(self, recipe: Recipe) -> Self:
        return replace(self, recipe=recipe, say=quiet)

    def sample(self) -> Self:
        whole = self.splits
        chosen = np.random.default_rng(0).permutation(len(whole.train))[: self.recipe.train.batch_size]
        splits = replace(whole, train=whole.train.subset(chosen), val=_few(whole.val), test=_few(whole.test))
        return replace(self, splits=splits)


def _few(samples: Samples | None) -> Samples | None:
    if samples is None:
        return None
    return samples.subset(np.linspace(0, len(samples) - 1, min(64, len(samples))).astype(int))
