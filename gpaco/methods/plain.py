"""Methods that need only class logits: cross entropy and its variants."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.losses.checks import log_frequencies
from gpaco.losses.classical import focal_loss
from gpaco.methods.method import Method, Setup, as_rows, each_view
from gpaco.methods.reweighted import counts_and_weights


class Plain(Method):
    """A loss of logits and labels, over all views.

    Args:
        loss: takes logits (N, C), labels (N,) or (N, C), and `per_class`.
        per_class: (C,), computed once from the class counts.
    """

    per_class: Tensor

    def __init__(self, loss: Callable[[Tensor, Tensor, Tensor], Tensor], per_class: Tensor) -> None:
        super().__init__()
        self.loss = loss
        self.register_buffer("per_class", per_class.float(), persistent=False)

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        logits, _ = model(*views)
        return self.loss(logits.float(), each_view(labels, views), self.per_class)


def cross_entropy(setup: Setup) -> Method:
    smoothing = setup.settings.label_smoothing
    return Plain(
        lambda logits, labels, _: F.cross_entropy(logits, labels, label_smoothing=smoothing), setup.class_counts
    )


def balanced_softmax(setup: Setup) -> Method:
    """Cross entropy of logits + tau * log frequencies; tau other than 1 is the logit-adjusted loss."""
    smoothing = setup.settings.label_smoothing
    return Plain(
        lambda logits, labels, log_prior: F.cross_entropy(logits + log_prior, labels, label_smoothing=smoothing),
        setup.settings.tau * log_frequencies(setup.class_counts, setup.num_classes),
    )


def focal(setup: Setup) -> Method:
    gamma, smoothing = setup.settings.gamma, setup.settings.label_smoothing

    def loss(logits: Tensor, labels: Tensor, _: Tensor) -> Tensor:
        if smoothing:
            labels = (1 - smoothing) * as_rows(labels, logits) + smoothing / logits.shape[1]
        return focal_loss(logits, labels, gamma=gamma)

    return Plain(loss, setup.class_counts)


def class_balanced(setup: Setup) -> Method:
    """Cross entropy weighted by the effective number of images of each class; the weights have a mean of one."""
    smoothing = setup.settings.label_smoothing

    def loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        # As released, divided by the number of images; F.cross_entropy would divide by the sum of their weights.
        return F.cross_entropy(logits, labels, weights, reduction="none", label_smoothing=smoothing).mean()

    return Plain(loss, counts_and_weights(setup, setup.settings.cb_beta)[1])
