"""Losses with class weights by the effective number of images: LDAM-DRW and the class-balanced focal loss."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.losses.classical import class_balanced_weights
from gpaco.methods.method import LogitMethod, Setup, as_rows
from gpaco.models.classifier import Classifier
from gpaco.models.gaussian import Blocks
from gpaco.system import distributed

DRW_BETA = 0.9999  # of the effective number


def counts_and_weights(setup: Setup, beta: float) -> tuple[Tensor, Tensor]:
    """Return class counts and weights by the effective number; a class without images does not affect the others."""
    there, counts = setup.train_counts > 0, setup.class_counts.double()
    weights = torch.ones(len(counts))
    weights[there] = class_balanced_weights(counts[there], beta=beta)
    return counts.clamp_min(counts[there].min()), weights


class LdamDrw(LogitMethod):
    """LDAM with deferred re-weighting (Cao et al., NeurIPS 2019), on a cosine classifier.

    loss = CE_w(s (cos - m_y e_y), y), margins m_j = margin * (n_min / n_j)^(1/4), s = 30; weights w_j proportional to
    (1 - beta) / (1 - beta^n_j), beta = 0.9999, with sum C, from `drw_start` (80%) of the epochs on, 1 before. CE_w is
    divided by the sum of the weights in the batch, over all processes, so the batch cannot be accumulated in parts.

    Departure: logits are s times the cosines at test time too (the predicted class is the same).
    """

    margins: Tensor
    weights: Tensor

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        settings = setup.settings
        self.share, self.deferred = settings.drw_start, True
        counts, weights = counts_and_weights(setup, DRW_BETA)
        margins = settings.margin * (counts.min() / counts) ** 0.25
        self.register_buffer("margins", (settings.scale * margins).float(), persistent=False)  # on scaled logits
        self.register_buffer("weights", weights, persistent=False)

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        self.deferred = epoch < self.share * epochs

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        rows = as_rows(labels, logits)
        moved = logits - self.margins.to(logits) * rows
        if self.deferred:
            return F.cross_entropy(moved, labels)
        weights = self.weights.to(logits)
        # For mixed labels too, where F.cross_entropy would divide by their number.
        total = distributed.sum_counts((rows * weights).sum()) / distributed.world_size()
        return F.cross_entropy(moved, labels, weights, reduction="sum") / total


class CbFocal(LogitMethod):
    """Class-balanced focal loss (Cui et al., CVPR 2019), over a sigmoid for each class.

    loss = w_y sum_j (1 - pt_j)^gamma (-log pt_j), with pt_j = sigmoid(z_j) for j = y and 1 - sigmoid(z_j) otherwise, as
    the mean over the batch; w_j proportional to (1 - beta) / (1 - beta^n_j), with sum C. The bias of the classifier
    starts at -log(C - 1) and has no weight decay.
    """

    weights: Tensor

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.gamma = setup.settings.cb_gamma
        _, weights = counts_and_weights(setup, setup.settings.cb_beta)
        self.register_buffer("weights", weights, persistent=False)
        setup.model.centers.bias.weight_decay = 0.0

    def prepare(self, model: Classifier, train: Blocks, val: Blocks | None) -> None:
        nn.init.constant_(model.centers.bias, -math.log(max(len(self.weights) - 1, 1)))

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        rows = as_rows(labels, logits)
        own, others = F.logsigmoid(logits), F.logsigmoid(-logits)  # log p and log(1 - p)
        costs = rows * -own * torch.exp(self.gamma * others) + (1 - rows) * -others * torch.exp(self.gamma * own)
        return (costs.sum(1) * (rows * self.weights.to(logits)).sum(1)).mean()
