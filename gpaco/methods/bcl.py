"""Balanced contrastive learning (Zhu et al., CVPR 2022)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.losses.checks import at_least_float32, log_frequencies
from gpaco.losses.contrast import no_autocast
from gpaco.methods.method import Method, Setup, as_rows


class Bcl(Method):
    """Logit-adjusted cross entropy of the first view, and contrast among the other views and the class prototypes.

    loss = bcl_logits CE(z + log pi, y) + bcl_weight L, z = 30 cos. In L an anchor i, a view embedding of class y, is
    compared with the set A of all other view embeddings and one prototype of each class, A_j its members of class j:

        l_i = -1/|A_y| sum_{a in A_y} [q_i.q_a / t - log sum_j 1/|A_j| sum_{k in A_j} exp(q_i.q_k / t)]

    All classes appear in the denominator with equal weight. Defaults are those for ImageNet-LT.

    Departures: the second and third view are both `views.second`; embeddings have length `model.dim` (released: 1024).
    With several processes, each compares its anchors only with its own views (assumed).
    """

    log_prior: Tensor

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        settings = setup.settings
        self.logits_weight, self.weight = settings.bcl_logits, settings.bcl_weight
        self.temperature = settings.bcl_temperature
        log_prior = log_frequencies(setup.class_counts, setup.num_classes).float()
        self.register_buffer("log_prior", log_prior, persistent=False)

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        logits, embeddings = model(*views)
        contrast = balanced_contrast(embeddings, labels, logits.shape[1], self.temperature)
        return self.logits_weight * F.cross_entropy(logits.float() + self.log_prior, labels) + self.weight * contrast


def balanced_contrast(embeddings: Tensor, labels: Tensor, num_classes: int, temperature: float) -> Tensor:
    """Return L for the embeddings of all views, followed by one prototype per class."""
    embeddings = at_least_float32(embeddings)
    anchors = embeddings[:-num_classes]
    own = labels.repeat(len(anchors) // len(labels))
    classes = torch.cat([own, torch.arange(num_classes, device=own.device)])
    with no_autocast(embeddings):
        similarities = anchors @ embeddings.t() / temperature
    itself = torch.eye(*similarities.shape, dtype=torch.bool, device=own.device)
    same = (own[:, None] == classes) & ~itself
    sizes = as_rows(classes, embeddings.new_empty(num_classes)).sum(0)  # at least 1: the prototype
    in_class = sizes[classes] - (own[:, None] == classes).to(sizes)  # |A_j(i)|, j the class of each column
    weighted = similarities - in_class.log()
    log_sum = weighted.masked_fill(itself, -torch.inf).logsumexp(1)
    positives = similarities.where(same, 0).sum(1) / same.sum(1)
    return (log_sum - positives).mean()
