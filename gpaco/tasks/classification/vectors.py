"""Heads on an array of feature vectors, with the same head, closed form and calibration as `--train head`."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gpaco import methods
from gpaco.data.samples import Samples, Splits
from gpaco.data.views.views import View
from gpaco.models.classifier import Classifier
from gpaco.recipes.settings import Recipe
from gpaco.system.progress import quiet
from gpaco.tasks.classification.batches import FeatureSource
from gpaco.tasks.classification.card import build_head, describe
from gpaco.tasks.classification.feature_cache import Vectors
from gpaco.tasks.classification.heads import closed_form, fit_head
from gpaco.tasks.classification.learner import ClassificationLearner, Earlier
from gpaco.tasks.classification.predictor import Predictor
from gpaco.tasks.classification.results import calibrated, used_part

# Methods that train a head with linear class centers in one stage, and the closed form.
METHODS = ("balanced-softmax", "gpaco", "paco", "multitask", "ce", "focal", "class-balanced", "cb-focal", "gaussian")


class Shifted(nn.Module):
    """Subtracts a fixed vector: a head learns faster from centered vectors. The closed form takes them uncentered."""

    center: Tensor

    def __init__(self, center: Tensor) -> None:
        super().__init__()
        self.register_buffer("center", center)

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors - self.center


@torch.no_grad()
def absorb(head: Classifier) -> None:
    """Move the shift before a head into the bias of its first layer."""
    if isinstance(head.backbone, Shifted):
        layer = head.hidden[0] if isinstance(head.hidden, nn.Sequential) else head.centers
        if isinstance(layer, nn.Linear):
            layer.bias.sub_(layer.weight @ head.backbone.center)
        head.backbone = nn.Identity()


def fit_vectors(
    recipe: Recipe,
    vectors: NDArray[np.float32],
    labels: NDArray[np.int64],
    classes: tuple[str, ...],
    device: torch.device,
    *,
    calibrate: bool,
) -> Predictor:
    """Return a classifier for vectors: `Predictor.logits` takes them, (N, F).

    Args:
        labels: indices into `classes`, each of which has a vector.
        calibrate: cross-validate the head; otherwise it is not calibrated, and not fused with the closed form. The
            closed form alone is always calibrated.
    """
    no_pixels = np.empty((len(labels), 0, 0, 3), np.uint8)
    splits = Splits(Samples(labels, classes, images=no_pixels), None, None, "vectors")
    view = View(recipe.views.first, 1)
    source = FeatureSource(recipe, splits, [view], [view], Vectors(torch.from_numpy(vectors), device))
    source.before = Shifted(torch.from_numpy(vectors).mean(0))
    source.embed_views()
    card = replace(describe(recipe, splits), model="vectors")
    if recipe.method.name in methods.CLOSED_FORM:
        head = build_head(card, source.frozen.width)
    else:
        head = fit_head(recipe, splits, card, source, device, Earlier())
        absorb(head)
    predictor = Predictor(head, card).to(device).eval()
    if not calibrate and recipe.method.name not in methods.CLOSED_FORM:
        return predictor
    learner = ClassificationLearner(recipe, splits, head, card, source, select=False)
    learner.gaussian = closed_form(source)
    return calibrated(learner, predictor, device, quiet)[used_part(recipe)]
