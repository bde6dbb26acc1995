"""Classification as a task: prepare the data and the recipe, begin a stage, finish the run."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from gpaco import methods
from gpaco.data.batches import Batch, shown_counts, steps_per_epoch
from gpaco.data.samples import Samples, Splits
from gpaco.errors import Diverged
from gpaco.metrics.classification import summarize
from gpaco.models import backbones
from gpaco.models.classifier import Classifier
from gpaco.models.freezing import freeze
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.system.progress import Say
from gpaco.tasks.classification.batches import Source, caches, check_pixels, source_of
from gpaco.tasks.classification.card import Card, build_model, describe
from gpaco.tasks.classification.defaults import resolve
from gpaco.tasks.classification.results import write_results
from gpaco.tasks.classification.splits import check_tuning, splits_of
from gpaco.training import checkpoint
from gpaco.training.run import Run, has_begun
from gpaco.training.task import Before


class ClassificationLearner:
    """What the loop trains (see `training.task.Learner`)."""

    def __init__(
        self, recipe: Recipe, splits: Splits, model: Classifier, card: Card, source: Source, *, select: bool
    ) -> None:
        self.recipe, self.splits, self.model, self.card, self.source = recipe, splits, model, card, source
        self.select = select  # whether validation data select the best epoch
        self.steps = steps_per_epoch(len(splits.train), recipe.train.batch_size)
        counts = torch.from_numpy(shown_counts(splits.train.counts, recipe.train.sampler))
        self.extra = methods.build(recipe, model, len(splits.classes), counts)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        self.extra.begin_epoch(epoch, self.recipe.train.epochs)
        return self.source.batches(epoch, start)

    def start(self, batch: Batch) -> float:
        return self.extra.start(self.model, batch.views, batch.labels)

    def loss(self, network: nn.Module, batch: Batch) -> Tensor:
        result: Tensor = self.extra(network, batch.views, batch.labels)
        return result

    def after_step(self) -> None:
        self.extra.after_step(self.model)

    def validate(self, network: Any) -> dict[str, Any]:
        """Return metrics on validation data; macro recall selects the best epoch."""
        samples = self.splits.val
        if samples is None or not self.select:
            return {}
        training = network.training
        logits = self.source.logits(network.eval(), samples)
        network.train(training)
        if not np.isfinite(logits).all():
            raise Diverged(
                "the outputs of the model on validation data are not finite; the last checkpoint is kept",
                "lower the learning rate: --lr",
            )
        card = self.card
        result = summarize(logits, samples.labels, card.counts, card.classes, many=card.many, few=card.few)
        kept = ("top1", "many", "medium", "few", "macro")
        return {f"val_{key}": result[key] for key in kept} | {"score": result["macro"]}


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
        splits = splits_of(recipe, say=say, thorough=not begun, run=folder if begun else None)
        task = cls(resolve(recipe, given, splits, device, say), splits, device, say)
        *_, last = stages = recipes.stages(task.recipe)
        for stage in stages:
            check_pixels(stage)
        say(task.plan(last))
        return task

    @staticmethod
    def check_model(name: str) -> None:
        backbones.check_name(name)

    def plan(self, stage: Recipe) -> str:
        """Return a line about the split to report on and the one that selects the epoch."""
        split, samples = self.splits.reported(stage.data.evaluate_on)
        what = f"{len(samples)} {split} images" if samples else "nothing"
        val = self.splits.val
        epoch = f"the best on {len(val)} val images" if val and self.selects(stage) else "the last"
        return f"metrics: on {what}; epoch: {epoch}"

    def begin(self, stage: Recipe, folder: Path, before: Before | None) -> ClassificationLearner:
        # Where pretrained weights came from, if the run already has them: they are not loaded again.
        origin = before.origin if before else None
        if checkpoint.find(folder / "checkpoints"):
            origin = checkpoint.load(folder / "checkpoints", ()).state["card"]["weights"]
        settings = stage.model
        torch.manual_seed(stage.train.seed)
        card = describe(stage, self.splits)
        model = build_model(card, settings.weights if origin is None else "")
        card = replace(card, weights=backbones.origin(model.backbone, settings.weights) if origin is None else origin)
        if before is not None:  # the stage before may have had another projector
            mine = model.state_dict()
            model.load_state_dict(mine | {name: value for name, value in before.weights.items() if name in mine})
        elif settings.head_std:
            nn.init.trunc_normal_(model.centers.weight, std=settings.head_std)
            nn.init.zeros_(model.centers.bias)
        if origin is not None and (folder / "backbone.safetensors").is_file():  # was frozen
            model.backbone.load_state_dict(load_file(folder / "backbone.safetensors"))
        if stage.train.part != "all":
            freeze(model, stage.train.part, lora_rank=stage.train.lora_rank)
        if stage.train.part == "head" and before is None and not stage.model.weights:
            self.say("no --weights: this trains a head on the features of an untrained network")
        source, card = source_of(stage, self.splits, model, card, folder, self.device, self.say)
        return ClassificationLearner(stage, self.splits, model, card, source, select=self.selects(stage))

    def selects(self, stage: Recipe) -> bool:
        """Whether validation data select the epoch.

        Not if the recipe wants the last epoch, reports on validation data, or trains no classifier.
        """
        judged = stage.train.select == "best" and self.splits.reported(stage.data.evaluate_on)[0] != "val"
        return self.splits.val is not None and judged and stage.method.name not in methods.WITHOUT_CLASSIFIER

    def finish(self, run: Run, learner: ClassificationLearner) -> None:
        source = learner.source if caches(learner.recipe) else None
        write_results(run, learner.recipe, self.splits, self.device, self.say, source=source)

    def with_recipe(self, recipe: Recipe, say: Say) -> Self:
        return replace(self, recipe=recipe, say=say)

    def sample(self) -> Self:
        whole = self.splits
        chosen = np.random.default_rng(0).permutation(len(whole.train))[: self.recipe.train.batch_size]
        splits = replace(whole, train=whole.train.subset(chosen), val=_few(whole.val), test=_few(whole.test))
        return replace(self, splits=splits)


def _few(samples: Samples | None) -> Samples | None:
    if samples is None:
        return None
    return samples.subset(np.linspace(0, len(samples) - 1, min(64, len(samples))).astype(int))
