"""Methods that need class logits only: cross entropy and its relatives."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.checks import class_counts_tensor
from gpaco.classical import balanced_softmax_loss, class_balanced_weights, focal_loss
from gpaco.methods.setup import Method, Setup, each_view


class Plain(Method):
    """A loss of logits and labels, over all views."""

    counts: Tensor

    def __init__(self, setup: Setup, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.loss = loss
        self.register_buffer("counts", class_counts_tensor(setup.class_counts, setup.num_classes).float())

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        logits, _ = model(*views)
        return self.loss(logits.float(), each_view(labels, views), self.counts)


def cross_entropy(setup: Setup) -> Method:
    smoothing = setup.settings.label_smoothing
    return Plain(setup, lambda logits, labels, counts: F.cross_entropy(logits, labels, label_smoothing=smoothing))


def balanced_softmax(setup: Setup) -> Method:
    smoothing = setup.settings.label_smoothing
    return Plain(
        setup,
        lambda logits, labels, counts: balanced_softmax_loss(logits, labels, counts, label_smoothing=smoothing),
    )


def focal(setup: Setup) -> Method:
    gamma = setup.settings.gamma
    return Plain(setup, lambda logits, labels, counts: focal_loss(logits, labels, gamma=gamma))


def class_balanced(setup: Setup) -> Method:
    """Cross entropy weighted by the effective number of images of each class."""
    beta, smoothing = setup.settings.beta, setup.settings.label_smoothing

    def loss(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        weights = class_balanced_weights(counts, beta=beta)
        return F.cross_entropy(logits, labels, weights.to(logits), label_smoothing=smoothing)

    return Plain(setup, loss)
