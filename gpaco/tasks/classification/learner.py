"""What the loop trains: a classifier, its method, and where its batches come from."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpaco import methods
from gpaco.data.batches import Batch, shown_counts, steps_per_epoch
from gpaco.data.samples import Splits
from gpaco.errors import Diverged
from gpaco.metrics.classification import summarize
from gpaco.models.classifier import Classifier
from gpaco.models.gaussian import Gaussian
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification.batches import Source
from gpaco.tasks.classification.card import Card


class ClassificationLearner:
    """What the loop trains (see `training.task.Learner`)."""

    def __init__(
        self, recipe: Recipe, splits: Splits, model: Classifier, card: Card, source: Source, *, select: bool
    ) -> None:
        self.recipe, self.splits, self.model, self.card, self.source = recipe, splits, model, card, source
        self.select = select  # whether validation data select the best epoch
        closed = recipe.method.name in methods.CLOSED_FORM
        self.steps = 0 if closed else steps_per_epoch(len(splits.train), recipe.train.batch_size)
        counts = torch.from_numpy(shown_counts(splits.train.counts, recipe.train.sampler))
        self.extra = methods.build(recipe, model, len(splits.classes), counts)
        self.gaussian: Gaussian | None = None  # the closed-form classifier of the same features, if they are cached

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
