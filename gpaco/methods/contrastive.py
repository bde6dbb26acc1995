"""Methods with a memory and no momentum encoder: GPaCo, SupCon, and the multi-task sum of cross entropy and SupCon."""

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.checks import class_counts_tensor
from gpaco.classical import balanced_softmax_loss, class_balanced_weights
from gpaco.loss import GPaCoLoss, supcon_loss
from gpaco.memory import Memory
from gpaco.methods.setup import Method, Setup, each_view, trial

if TYPE_CHECKING:
    from gpaco.model import Classifier


class GPaCo(Method):
    """`GPaCoLoss` of all views, all of them anchors."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.loss = gpaco_criterion(setup)
        self.balanced = setup.settings.start == "balanced"

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        logits, embeddings = model(*views)
        loss: Tensor = self.loss(logits, embeddings, each_view(labels, views))
        return loss

    def start(self, model: "Classifier", views: list[Tensor], labels: Tensor) -> float:
        if not self.balanced:
            return 0.0
        with trial(model):
            logits, embeddings = model(*views)
        return self.loss.balance(model.centres, logits, embeddings, each_view(labels, views))


def gpaco_criterion(setup: Setup) -> GPaCoLoss:
    """The criterion that the settings describe."""
    settings = setup.settings
    criterion = GPaCoLoss(
        setup.num_classes,
        alpha=settings.alpha,
        temperature=settings.temperature,
        memory=settings.memory,
        dim=setup.dim,
        views=setup.views,
        class_counts=setup.class_counts,
        prior=None if settings.prior == "none" else settings.prior,
        label_smoothing=settings.label_smoothing,
        contrast=settings.contrast,
    )
    if settings.start == "released" and settings.memory:
        criterion.memory = Memory(settings.memory, setup.dim, num_classes=setup.num_classes, official_start=True)
    return criterion


class SupCon(Method):
    """Supervised contrastive learning of the features; a later stage trains the classifier."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.memory = Memory(setup.settings.memory, setup.dim)
        self.temperature = setup.settings.temperature

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        logits, embeddings = model(*views)
        # DistributedDataParallel wants every parameter in the loss; the centres wait for their stage.
        waiting: Tensor = 0 * logits.sum()
        return self.contrast(embeddings, labels, len(views)) + waiting

    def contrast(self, embeddings: Tensor, labels: Tensor, views: int, reduction: str = "mean") -> Tensor:
        if labels.dim() == 2:
            self.memory.hold_probabilities(labels.shape[1])
        repeated = labels.repeat(views, *[1] * (labels.dim() - 1))
        loss = supcon_loss(embeddings, repeated, *self.memory.read(), temperature=self.temperature, reduction=reduction)
        self.memory.push(embeddings[-len(labels) :], labels)
        return loss


class MultiTask(SupCon):
    """Cross entropy or balanced softmax plus `weight` times SupCon, which may be re-weighted by class."""

    counts: Tensor
    class_weights: Tensor

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        settings = setup.settings
        self.weight, self.base, self.smoothing = settings.weight, settings.base, settings.label_smoothing
        self.reweight = settings.reweight
        self.register_buffer("counts", class_counts_tensor(setup.class_counts, setup.num_classes))
        self.register_buffer("class_weights", class_balanced_weights(setup.class_counts, beta=settings.beta))

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        logits, embeddings = model(*views)
        repeated = each_view(labels, views)
        if self.base == "ce":
            loss = F.cross_entropy(logits.float(), repeated, label_smoothing=self.smoothing)
        else:
            loss = balanced_softmax_loss(logits, repeated, self.counts, label_smoothing=self.smoothing)
        if not self.reweight:
            return loss + self.weight * self.contrast(embeddings, labels, len(views))
        costs = self.contrast(embeddings, labels, len(views), reduction="none")
        weights = self.class_weights[repeated] if repeated.dim() == 1 else repeated @ self.class_weights
        return loss + self.weight * (costs * weights).sum() / weights.sum()
