"""Methods that need only class logits: cross entropy and its variants."""

from torch import Tensor
from torch.nn import functional as F

from gpaco.losses.checks import log_frequencies
from gpaco.losses.classical import focal_loss
from gpaco.methods.method import LogitMethod, Setup, as_rows
from gpaco.methods.reweighted import counts_and_weights


class CrossEntropy(LogitMethod):
    """Cross entropy with label smoothing."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.smoothing = setup.settings.label_smoothing

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=self.smoothing)


class BalancedSoftmax(CrossEntropy):
    """Cross entropy of logits + tau * log frequencies; tau other than 1 is the logit-adjusted loss."""

    log_prior: Tensor

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        log_prior = setup.settings.tau * log_frequencies(setup.class_counts, setup.num_classes)
        self.register_buffer("log_prior", log_prior.float(), persistent=False)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().loss(logits + self.log_prior, labels)


class Focal(CrossEntropy):
    """Cross entropy times (1 - p)^gamma."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.gamma = setup.settings.gamma

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.smoothing:
            labels = (1 - self.smoothing) * as_rows(labels, logits) + self.smoothing / logits.shape[1]
        return focal_loss(logits, labels, gamma=self.gamma)


class ClassBalanced(CrossEntropy):
    """Cross entropy weighted by the effective number of images of each class; the weights have a mean of one."""

    weights: Tensor

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        _, weights = counts_and_weights(setup, setup.settings.cb_beta)
        self.register_buffer("weights", weights, persistent=False)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        # As released, divided by the number of images; F.cross_entropy would divide by the sum of their weights.
        losses = F.cross_entropy(logits, labels, self.weights, reduction="none", label_smoothing=self.smoothing)
        return losses.mean()
