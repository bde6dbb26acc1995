"""Segmentation as a task: prepare the data and the recipe, begin a stage, finish the run."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch

from gpaco.errors import UserError
from gpaco.recipes.settings import Recipe
from gpaco.system.progress import Say, told
from gpaco.tasks.reported import reported
from gpaco.tasks.segmentation.card import build_model, describe
from gpaco.tasks.segmentation.defaults import check_settings, resolve
from gpaco.tasks.segmentation.learner import SegmentationLearner
from gpaco.tasks.segmentation.network import check_known
from gpaco.tasks.segmentation.results import write_results
from gpaco.tasks.segmentation.scenes import Scenes, SceneSplits, pixel_counts
from gpaco.tasks.segmentation.splits import inspected, left_out, scene_splits
from gpaco.training import checkpoint
from gpaco.training.run import Run
from gpaco.training.task import Before


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
        splits = scene_splits(recipe, say, run=folder)
        if left_out(recipe, folder) is None:
            splits = inspected(splits, recipe, say)
        resolved = resolve(recipe, given, splits, device, say)
        pixels = pixel_counts(splits.train, told(say, "counting pixels"))
        if not pixels.any():
            raise UserError("no training pixel belongs to a class", "run `gpaco check DATA --task segmentation`")
        return cls(resolved, replace(splits, pixels=tuple(pixels.tolist())), device, say)

    @staticmethod
    def check_model(name: str) -> None:
        check_known(name)

    def begin(self, stage: Recipe, folder: Path, before: Before | None) -> SegmentationLearner:
        begun = bool(checkpoint.find(folder / "checkpoints"))
        torch.manual_seed(stage.train.seed)
        card = describe(stage, self.splits)
        model = build_model(card, "" if begun or before else stage.model.weights)
        if before is not None:
            card = replace(card, weights=before.origin)
            mine = model.state_dict()
            taken = {name: value for name, value in before.weights.items() if name in mine}
            if changed := [name for name, value in taken.items() if mine[name].shape != value.shape]:
                raise UserError(
                    f"{changed[0]} has another shape in stage {stage.name!r} than in the stage before",
                    "keep model.name, model.dim and segmentation.channels the same in all stages",
                )
            model.load_state_dict(mine | taken)
        return SegmentationLearner(stage, self.splits, model, card, select=self.selects(stage))

    def selects(self, stage: Recipe) -> bool:
        """Whether validation data select the epoch: not if the recipe wants the last one or reports on them."""
        judged = stage.train.select == "best" and reported(stage, self.splits)[0] != "val"
        return self.splits.val is not None and judged

    def finish(self, run: Run, learner: SegmentationLearner) -> None:
        write_results(run, learner.recipe, self.splits, self.device, self.say)

    def with_recipe(self, recipe: Recipe, say: Say) -> Self:
        return replace(self, recipe=recipe, say=say)

    def sample(self) -> Self:
        train = self.splits.train.subset(range(min(self.recipe.train.batch_size, len(self.splits.train))))
        splits = replace(self.splits, train=train, val=_few(self.splits.val), test=_few(self.splits.test))
        return replace(self, splits=splits)


def _few(scenes: Scenes | None) -> Scenes | None:
    return None if scenes is None else scenes.subset(range(min(2, len(scenes))))
