"""Segmentation as a task: prepares the data and the recipe, begins stages, finishes the run."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from gpaco.data.agreement import check_same_everywhere
from gpaco.data.batches import Batch, steps_per_epoch
from gpaco.errors import UserError
from gpaco.models.backbones import NONE
from gpaco.models.weights.hub import fetch, is_hub
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.progress import Say, as_progress, quiet
from gpaco.tasks.segmentation.batches import batches
from gpaco.tasks.segmentation.card import Card, build_model, describe
from gpaco.tasks.segmentation.defaults import check_settings, resolve
from gpaco.tasks.segmentation.estimate import estimate_seconds, format_estimate
from gpaco.tasks.segmentation.evaluation import evaluate_scenes
from gpaco.tasks.segmentation.inspection import class_problem, gap_problem
from gpaco.tasks.segmentation.losses import SceneLoss
from gpaco.tasks.segmentation.network import Segmenter, timm_name
from gpaco.tasks.segmentation.predictor import ScenePredictor
from gpaco.tasks.segmentation.results import write_results
from gpaco.tasks.segmentation.scenes import SceneSplits, pixel_counts
from gpaco.tasks.segmentation.splits import inspected, left_out, scene_splits
from gpaco.tasks.segmentation.start import check_start, choose_start
from gpaco.training import checkpoint
from gpaco.training.run import Run, has_begun
from gpaco.training.task import Before


class SegmentationLearner:
    """What the loop trains (see `training.task.Learner`)."""

    def __init__(self, recipe: Recipe, splits: SceneSplits, model: Segmenter, card: Card, *, select: bool) -> None:
        self.recipe, self.splits, self.card = recipe, splits, card
        self.select = select  # whether validation data selects the best epoch
        self.model = distributed.share_statistics(model)
        self.extra = SceneLoss(recipe.method, recipe.segmentation)
        self.steps = steps_per_epoch(len(splits.train), recipe.train.batch_size)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        device = next(self.model.parameters()).device
        return batches(self.splits.train, self.recipe, self.card, epoch=epoch, start=start, device=device)

    def start(self, batch: Batch) -> float:
        return 0.0

    def loss(self, network: nn.Module, batch: Batch) -> Tensor:
        result: Tensor = self.extra(network(*batch.views), batch.labels)
        return result

    def after_step(self) -> None:
        pass

    def validate(self, network: Any) -> dict[str, Any]:
        """Return metrics on validation scenes; mIoU selects the best epoch."""
        scenes = self.splits.val
        if scenes is None or not self.select:
            return {}
        training, device = network.training, next(network.parameters()).device
        result = evaluate_scenes(ScenePredictor(network.eval(), self.card).to(device).eval(), scenes)
        network.train(training)
        kept = ("miou", "many", "medium", "few", "pixel_accuracy")
        return {f"val_{key}": result[key] for key in kept} | {"score": result["miou"] or 0.0}


@dataclass(frozen=True)
class Segmentation:
    """A recipe and its scenes, ready to train (see `training.task.Task`)."""

    recipe: Recipe
    splits: SceneSplits
    device: torch.device
    say: Say

    @classmethod
    def prepare(cls, recipe: Recipe, given: set[str], folder: Path, device: torch.device, say: Say) -> Self:
        check_settings(recipe)
        recipe = choose_start(recipe, say)
        if not has_begun(folder):
            cls.check_model(recipe.model.name, recipe.model.weights)
        splits = scene_splits(recipe, say, run=folder, shared=True)
        check_same_everywhere(splits)
        if gaps := gap_problem(splits):
            raise gaps
        if left_out(recipe, folder) is None:
            splits = inspected(splits, recipe, say)
        resolved = resolve(recipe, given, splits, device, say)
        pixels = pixel_counts(splits.train, as_progress(say, "counting pixels"))
        if not pixels.any():
            raise UserError("no training pixel belongs to a class", "run `gpaco check DATA --task segmentation`")
        if problem := class_problem(splits.train.classes, pixels):
            say(f"WARNING: {problem}")
        task = cls(resolved, replace(splits, pixels=tuple(pixels.tolist())), device, say)
        if not has_begun(folder):
            seconds = sum(estimate_seconds(stage, task.splits, device) for stage in recipes.stages(resolved))
            say(format_estimate(seconds, resolved, device))
        return task

    @staticmethod
    def check_model(name: str, weights: str) -> None:
        check_start(name, weights)

    def begin(self, stage: Recipe, folder: Path, before: Before | None) -> SegmentationLearner:
        begun = bool(checkpoint.find(folder / "checkpoints"))
        torch.manual_seed(stage.train.seed)
        card = describe(stage, self.splits)
        weights = NONE if begun or before else stage.model.weights
        if is_hub(weights):
            weights = f"hub:{fetch(timm_name(stage.model.name), weights)}"  # with the revision
            card = replace(card, weights=weights)
        elif begun:  # as it was then, with the revision of the hub
            card = replace(card, weights=checkpoint.load(folder / "checkpoints", ()).state["card"]["weights"])
        model = build_model(card, weights)
        if before is not None:
            card = replace(card, weights=before.origin)
            mine = model.state_dict()
            taken = {name: value for name, value in before.weights.items() if name in mine}
            if changed := [name for name, value in taken.items() if mine[name].shape != value.shape]:
                raise UserError(
                    f"{changed[0]} has a different shape in stage {stage.name!r} than in the previous stage",
                    "keep model.name, model.dim and segmentation.channels the same in all stages",
                )
            model.load_state_dict(mine | taken)
        return SegmentationLearner(stage, self.splits, model, card, select=self.selects(stage))

    def selects(self, stage: Recipe) -> bool:
        """Return whether validation data selects the epoch: not if the recipe uses the last one or reports on it."""
        return stage.train.select == "best" and self.splits.selecting(stage.data.evaluate_on) is not None

    def finish(self, run: Run, learner: SegmentationLearner) -> None:
        write_results(run, learner.recipe, self.splits, self.device, self.say)

    def with_recipe(self, recipe: Recipe) -> Self:
        return replace(self, recipe=recipe, say=quiet)

    def sample(self) -> Self:
        train = self.splits.train.subset(range(min(self.recipe.train.batch_size, len(self.splits.train))))
        others = [(name, part) for name, part in self.splits.parts() if name != "train"]
        few: dict[str, Any] = {name: part.subset(range(min(2, len(part)))) for name, part in others}
        return replace(self, splits=replace(self.splits, train=train, **few))
