"""GPaCo, SupCon, and the multi-task sum of cross entropy and SupCon."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.errors import UserError
from gpaco.losses.checks import log_frequencies, mean_over_anchors
from gpaco.losses.classical import class_balanced_weights
from gpaco.losses.contrastive import supcon_loss
from gpaco.losses.criterion import GPaCoLoss
from gpaco.losses.memory import Memory
from gpaco.losses.pairs import to_pairs
from gpaco.methods.method import Method, Setup, each_view, trial
from gpaco.models.classifier import Classifier, momentum_copy, update_momentum
from gpaco.system import distributed


class GPaCo(Method):
    """`GPaCoLoss` with every view of every image as an anchor, or, as in the paper's text, only the first view.

    The last view is then a reference with a gradient.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.first_only = setup.settings.anchors == "first" and setup.views > 1
        self.loss = gpaco_criterion(setup._replace(views=1) if self.first_only else setup)
        self.balanced = setup.settings.start == "balanced"

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        loss: Tensor = self.loss(*self.batch(model, views, labels))
        return loss

    def batch(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> tuple[Tensor, ...]:
        """Return the arguments of the criterion."""
        logits, embeddings = model(*views)
        rows = len(labels)
        if self.first_only:
            return logits[:rows], embeddings[:rows], labels, embeddings[-rows:]
        return logits, embeddings, each_view(labels, views)

    def start(self, model: Classifier, views: list[Tensor], labels: Tensor) -> float:
        if not self.balanced:
            return 0.0
        with trial(model):
            batch = self.batch(model, views, labels)
        try:
            return self.loss.balance(model.centers, *batch)
        except ValueError as error:
            raise UserError(
                f"cannot balance the start: {error}",
                "use two views (--set views.second=plain), a larger --batch-size, or --set method.start=released",
            ) from error


def gpaco_criterion(setup: Setup) -> GPaCoLoss:
    """Build the criterion from the settings."""
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
    criterion.memory = memory_of(setup)
    return criterion


def memory_of(setup: Setup) -> Memory:
    """Return an empty memory, or, as in the released code, one full of random rows with random labels.

    The release normalizes the rows over the wrong axis (their length is about sqrt(dim / size), not 1), and the random
    labels act as false positives until the memory has been filled once.
    """
    memory = Memory(setup.settings.memory, setup.dim)
    if setup.settings.start == "released":
        rows, size = F.normalize(torch.randn_like(memory.embeddings), dim=0), len(memory.embeddings)
        labels = torch.randint(setup.num_classes, (size,))
        memory.load_state_dict({"embeddings": rows, "labels": labels, "pushed": torch.tensor(size)})
    return memory


class Seen(NamedTuple):
    """The outputs of the network for a batch."""

    logits: Tensor
    embeddings: Tensor  # the anchors
    labels: Tensor  # one for each anchor
    keys: Tensor  # embeddings of the last view, for the memory


class SupCon(Method):
    """Supervised contrastive learning of the features; a later stage trains the classifier.

    With `momentum_keys`, the anchors come from the first view, and a momentum copy of the network computes keys from
    the last view, as in PaCo. With `anchors` "first", the network itself computes them, with a gradient.
    """

    log_prior: Tensor
    class_weights: Tensor

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        settings = setup.settings
        self.memory = memory_of(setup)
        self.temperature, self.momentum, self.rebalance = settings.temperature, settings.momentum, settings.rebalance
        self.first_only = settings.anchors == "first" and setup.views > 1
        self.shuffle = settings.shuffle_keys
        self.gathers = settings.contrast == "global"
        self.key_network = momentum_copy(setup.model) if settings.momentum_keys else None
        log_prior = log_frequencies(setup.class_counts, setup.num_classes).float()
        self.register_buffer("log_prior", log_prior, persistent=False)
        self.register_buffer("class_weights", class_balanced_weights(setup.class_counts, beta=settings.beta))
        if settings.name == "supcon":
            for parameter in setup.model.centers.parameters():
                parameter.weight_decay = 0.0  # they wait for a later stage

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        seen = self.see(model, views, labels)
        # DistributedDataParallel needs every parameter in the loss; the centers are trained in a later stage.
        waiting: Tensor = 0 * seen.logits.sum()
        return self.contrast(seen, labels) + waiting

    def see(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Seen:
        if self.key_network is None:
            logits, embeddings = model(*views)
            rows = len(labels)
            if self.first_only:
                return Seen(logits[:rows], embeddings[:rows], labels, embeddings[-rows:])
            return Seen(logits, embeddings, each_view(labels, views), embeddings[-rows:])
        logits, queries = model(views[0])
        return Seen(logits, queries, labels, momentum_keys(self.key_network, views[-1], shuffle=self.shuffle))

    def contrast(self, seen: Seen, labels: Tensor) -> Tensor:
        """Return the SupCon loss of the anchors, rebalanced as configured, then push the keys to the memory."""
        references, their_labels = self.memory.read()
        anchors, rows, keys, key_labels = seen.embeddings, seen.labels, seen.keys, labels
        if self.gathers and self.training:  # every process computes the loss of all anchors
            counts, key_counts = distributed.row_counts(anchors), distributed.row_counts(keys)
            anchors, rows = (distributed.gather(one, counts) for one in (anchors, rows))
            keys, key_labels = (distributed.gather(one, key_counts) for one in (keys, key_labels))
        if self.key_network is not None or self.first_only:
            references = torch.cat([keys, references])
            if key_labels.dim() == 2 and their_labels.dim() == 1:
                their_labels = to_pairs(their_labels, self.memory.embeddings.dtype)
            if their_labels.dim() == 3:
                key_labels = to_pairs(key_labels, their_labels.dtype)
            their_labels = torch.cat([key_labels, their_labels])
        costs = supcon_loss(
            anchors,
            rows,
            references,
            their_labels,
            temperature=self.temperature,
            log_prior=self.log_prior if self.rebalance == "prior" else None,
            reduction="none" if self.rebalance == "weights" else "mean",
        )
        self.memory.push(seen.keys, labels)
        if self.rebalance != "weights":
            return costs
        weights = self.class_weights[rows] if rows.dim() == 1 else (rows * self.class_weights).sum(1)
        weights = weights * (costs.detach() != 0)  # an anchor without positives has no loss and does not count
        return mean_over_anchors((costs * weights).sum(), weights.sum())

    def after_step(self, model: Classifier) -> None:
        if self.key_network is not None:
            update_momentum(self.key_network, model, self.momentum)


class MultiTask(SupCon):
    """Cross entropy or balanced softmax plus `weight` times SupCon."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        settings = setup.settings
        self.weight, self.base, self.smoothing = settings.weight, settings.base, settings.label_smoothing

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        seen = self.see(model, views, labels)
        logits = seen.logits.float()
        if self.base == "balanced-softmax":
            logits = logits + self.log_prior
        loss = F.cross_entropy(logits, seen.labels, label_smoothing=self.smoothing)
        return loss + self.weight * self.contrast(seen, labels)


@torch.no_grad()
def momentum_keys(network: nn.Module, images: Tensor, *, shuffle: bool) -> Tensor:
    """Return the keys (B, D) of images (B, 3, H, W).

    With `shuffle`, the images of all processes are redistributed before the network sees them, and the keys are put
    back in order: batch norm, which sees the rows of one process or ghost batch at a time, then computes the statistics
    of a key from different images than those of its query. Otherwise a network could identify the key of a query by
    their shared statistics (MoCo, section 3.3). Process 0 draws the order from PyTorch's generator, which the training
    loop seeds in every step.
    """
    if not shuffle:
        keys: Tensor = network(images)[1]
        return keys
    counts = distributed.row_counts(images)
    order = distributed.from_first(torch.randperm(sum(counts), device=images.device))
    mine = order.split(counts)[distributed.rank()]
    keys = distributed.gather(network(distributed.gather(images, counts)[mine])[1], counts)
    parts: tuple[Tensor, ...] = keys[order.argsort()].split(counts)
    return parts[distributed.rank()]
