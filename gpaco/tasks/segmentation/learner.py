"""One stage of training a segmenter: its network, its loss, and batches of crops."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from gpaco.data.batches import steps_per_epoch
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.tasks.segmentation.batches import Crops, SceneBatch, batches
from gpaco.tasks.segmentation.card import Card
from gpaco.tasks.segmentation.evaluation import evaluate_scenes
from gpaco.tasks.segmentation.losses import SceneLoss
from gpaco.tasks.segmentation.network import Segmenter
from gpaco.tasks.segmentation.predictor import ScenePredictor
from gpaco.tasks.segmentation.scenes import SceneSplits


class SegmentationLearner:
    """What the loop trains (see `training.task.Learner`)."""

    def __init__(self, recipe: Recipe, splits: SceneSplits, model: Segmenter, card: Card, *, select: bool) -> None:
        self.recipe, self.splits, self.card = recipe, splits, card
        self.select = select  # whether validation data select the best epoch
        self.model = distributed.share_statistics(model)
        self.extra = SceneLoss(recipe.method, recipe.segmentation)
        self.steps = steps_per_epoch(len(splits.train), recipe.train.batch_size)
        settings = recipe.segmentation
        self.crops = Crops(
            crop=(settings.crop[0], settings.crop[1]),
            base_size=(settings.base_size[0], settings.base_size[1]),
            scale=(settings.scale[0], settings.scale[1]),
            max_share=settings.max_share,
            colors=settings.colors,
            fill=(round(255 * card.mean[0]), round(255 * card.mean[1]), round(255 * card.mean[2])),
        )

    def batches(self, epoch: int, start: int) -> Iterator[SceneBatch]:
        settings = self.recipe.train
        return batches(
            self.splits.train,
            self.crops,
            batch_size=settings.batch_size,
            seed=settings.seed,
            epoch=epoch,
            mean=self.card.mean,
            std=self.card.std,
            start=start,
            rank=distributed.rank(),
            world=distributed.world_size(),
            workers=settings.workers,
            device=next(self.model.parameters()).device,
        )

    def start(self, batch: SceneBatch) -> float:
        return 0.0

    def loss(self, network: nn.Module, batch: SceneBatch) -> Tensor:
        result: Tensor = self.extra(network(batch.images), batch.masks)
        return result

    def after_step(self) -> None:
        pass

    def validate(self, network: nn.Module) -> dict[str, Any]:
        """Return metrics on validation scenes; mIoU selects the best epoch."""
        scenes = self.splits.val
        if scenes is None or not self.select:
            return {}
        training, device = network.training, next(network.parameters()).device
        result = evaluate_scenes(ScenePredictor(network.eval(), self.card).to(device).eval(), scenes)
        network.train(training)
        kept = ("miou", "many", "medium", "few", "pixel_accuracy")
        return {f"val_{key}": result[key] for key in kept} | {"score": result["miou"] or 0.0}
