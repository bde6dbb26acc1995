"""Methods that need only class logits: cross entropy and its variants."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.losses.checks import log_frequencies
from gpaco.losses.classical import class_balanced_weights, focal_loss
from gpaco.methods.method import Method, Setup, each_view


class Plain(Method):
    """A loss of logits and labels, over all views.

    Args:
        loss: takes logits (N, C), labels (N,) or (N, C), and `per_class`.
        per_class: (C,), what the loss needs of the class counts, computed once.
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
    """Cross entropy of logits + log frequencies."""
    smoothing = setup.settings.label_smoothing
    return Plain(
        lambda logits, labels, log_prior: F.cross_entropy(logits + log_prior, labels, label_smoothing=smoothing),
        log_frequencies(setup.class_counts, setup.num_classes),
    )


def focal(setup: Setup) -> Method:
    gamma = setup.settings.gamma
    return Plain(lambda logits, labels, _: focal_loss(logits, labels, gamma=gamma), setup.class_counts)


def class_balanced(setup: Setup) -> Method:
    """Cross entropy weighted by the effective number of images of each class."""
    smoothing = setup.settings.label_smoothing
    return Plain(
        lambda logits, labels, weights: F.cross_entropy(logits, labels, weights, label_smoothing=smoothing),
        class_balanced_weights(setup.class_counts, beta=setup.settings.beta),
    )
