"""What the loop trains: a classifier, its method, and the source of its batches."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gpaco import methods
from gpaco.data.batches import Batch, shown_counts, steps_per_epoch
from gpaco.data.samples import Splits
from gpaco.errors import Diverged
from gpaco.metrics.classification import accuracies
from gpaco.models.classifier import Classifier
from gpaco.models.gaussian import Gaussian
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification.batches import Source
from gpaco.tasks.classification.card import Card


class Earlier(NamedTuple):
    """Earlier stages of a run."""

    weights: Mapping[str, Tensor] = {}
    stages: tuple[Recipe, ...] = ()  # stages that trained heads on the same features


class ClassificationLearner:
    """What the loop trains (see `training.task.Learner`)."""

    def __init__(
        self,
        recipe: Recipe,
        splits: Splits,
        model: Classifier,
        card: Card,
        source: Source,
        *,
        select: bool,
        before: Earlier | None = None,
    ) -> None:
        self.before = before or Earlier()
        self.recipe, self.splits, self.model, self.card, self.source = recipe, splits, model, card, source
        self.select = select  # whether validation data selects the best epoch
        still = recipe.method.name in methods.UNTRAINED
        self.steps = 0 if still else steps_per_epoch(len(splits.train), recipe.train.batch_size)
        counts = splits.train.counts
        shown = torch.from_numpy(shown_counts(counts, recipe.train.sampler))
        self.extra = methods.build(recipe, model, len(splits.classes), shown, torch.from_numpy(counts))
        self.gaussian: Gaussian | None = None  # the closed-form classifier of the same features, if they are cached

    def prepare(self, device: torch.device) -> None:
        """Show the method the features of images once before training, but not when a run resumes."""
        model, val = self.model.to(device).eval(), self.splits.selecting(self.recipe.data.evaluate_on)
        self.extra.to(device).prepare(
            model, lambda: self.source.seen(model), None if val is None else lambda: self.source.seen(model, val)
        )
        model.train()

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
        predictions = self.source.predictions(network.eval(), samples)
        network.train(training)
        if (predictions < 0).any():
            raise Diverged(
                "the outputs of the model on validation data are not finite; the last checkpoint is kept",
                "lower the learning rate: --lr",
            )
        card = self.card
        result = accuracies(predictions, samples.labels, card.counts, len(card.classes), many=card.many, few=card.few)
        return {f"val_{key}": value for key, value in result.items()} | {"score": result["macro"]}
