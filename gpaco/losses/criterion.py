"""`GPaCoLoss`: the parametric contrastive loss with its state, a memory and a class prior."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from gpaco.losses.checks import (
    Counts,
    at_least_float32,
    check_choice,
    check_number,
    check_same_rows,
    check_scores,
    kept_wide,
    log_frequencies,
    mean_over_anchors,
    widened,
)
from gpaco.losses.contrast import (
    References,
    batch_and_memory,
    check_options,
    checked_references,
    class_counts,
    contrast,
    no_autocast,
    parametric_loss,
    with_prior,
)
from gpaco.losses.memory import Memory
from gpaco.system import distributed


class GPaCoLoss(nn.Module):
    """`gpaco_loss` with a memory and a class prior: the loss to drop into a training loop.

        criterion = GPaCoLoss(num_classes, class_counts=counts)
        logits, embeddings = model(torch.cat([view1, view2]))
        loss = criterion(logits, embeddings, labels.repeat(2))

    In training mode, a call reads the memory and then pushes the last view; in evaluation mode it does neither, and
    under `no_grad` nothing is pushed. Save and restore it with the model: memory and prior are in its `state_dict`. It
    has no parameters. Compile the model, not the criterion, whose memory changes size. It stays in float32
    if a module around it is converted to half precision.

    Args:
        num_classes: C, the number of classes.
        alpha, temperature, label_smoothing: as in `gpaco_loss`.
        memory: number of rows in the memory, the paper's length(queue); 0 for no memory.
        dim: length of an embedding.
        views: number of views of each image in a batch, one view after the other; the memory stores the last one.
        class_counts: images per class **as seen in training**: if a sampler changes the frequencies, its counts.
            Without them, no prior is added.
        prior: what to add to the logits in training.
            "counts": log q, as in the paper. The raw logits are then biased against frequent classes, since the loss
            itself takes mass from their centers (their images have more positives).
            "unbiased": log q + log w, so that raw logits learn log p(x | class). w is the mass that the loss leaves to
            the center of each class, the mean of 1 / (1 + alpha * positives), measured on the actual positives, so it
            adapts to a filling memory and any sampler. docs/decisions.md has the derivation.
            None: nothing.
        contrast: how processes work together. "local": each contrasts its own views with the shared memory, as in the
            released code. "global": in training, views are gathered with their gradient, so that all processes together
            compute the loss of a single process and, under DistributedDataParallel, its gradient.

    Attributes:
        memory: the `Memory`.
        log_prior: log q, (C,), or None.
        center_share: w, (C,), a running mean that is updated with any prior: subtract its logarithm to remove the bias
            from the logits of a model trained with "counts".

    >>> criterion = GPaCoLoss(3, memory=8, dim=2, class_counts=[5, 3, 1], prior="unbiased")
    >>> logits, embeddings = torch.zeros(4, 3, requires_grad=True), torch.eye(2).repeat(2, 1)  # two views of two images
    >>> loss = criterion(logits, embeddings, torch.tensor([0, 2]).repeat(2))
    >>> loss.backward()
    >>> logits.grad.shape, len(criterion.memory.read()[0])  # the last view of each image is remembered
    (torch.Size([4, 3]), 2)
    """

    log_prior: Tensor | None
    center_share: Tensor
    steps: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        alpha: float = 0.05,
        temperature: float = 0.2,
        memory: int = 8192,
        dim: int = 128,
        views: int = 2,
        class_counts: Counts | None = None,
        prior: str | None = "counts",
        label_smoothing: float = 0.0,
        contrast: str = "local",
    ) -> None:
        super().__init__()
        check_number(num_classes, "num_classes", 1)
        check_number(views, "views", 1)
        check_options(num_classes, alpha, temperature, label_smoothing)
        check_choice(prior, "prior", ("counts", "unbiased", None))
        check_choice(contrast, "contrast", ("local", "global"))
        if prior == "unbiased" and class_counts is None:
            raise ValueError('prior="unbiased" needs class_counts: pass the number of images of each class')
        self.num_classes, self.views, self.prior, self.contrast = num_classes, views, prior, contrast
        self.alpha, self.temperature, self.label_smoothing = alpha, temperature, label_smoothing
        self.memory = Memory(memory, dim)
        self.register_buffer("log_prior", None)
        self.register_buffer("center_share", torch.full((num_classes,), 1 / (1 + alpha * (views - 1))))
        self.register_buffer("steps", torch.tensor(0))  # averaged by center_share since the memory is full
        if class_counts is not None and prior is not None:
            self.log_prior = log_frequencies(class_counts, num_classes).to(at_least_float32(self.center_share))

    def forward(self, logits: Tensor, embeddings: Tensor, labels: Tensor, keys: Tensor | None = None) -> Tensor:
        """Return the scalar loss.

        Args:
            logits: (views * B, C), all images in the first view, then all in the next.
            embeddings: (views * B, dim), of unit length.
            labels: (views * B,), one label per row, or (views * B, C).
            keys: (B, dim), embeddings of the same images by a momentum copy of the network: additional references,
                which the memory stores instead of the last view. With views = 1 and keys, this is PaCo.
        """
        labels = widened(labels)
        references, anchors = self._references(logits, embeddings, labels, keys)
        share, learning = self.center_share, self.training and torch.is_grad_enabled()
        if learning:
            # While the memory fills, the value of this batch; then a running mean over about a hundred steps.
            full = len(self.memory) == len(self.memory.embeddings)
            steps = self.steps + 1 if full else torch.ones_like(self.steps)
            weight = steps.to(share).reciprocal().clamp_min(0.01)
            share = torch.lerp(share, self._center_share(references, keys), weight)
        losses, weights = parametric_loss(
            logits, references, anchors, self.alpha, self.temperature, self._prior(share), self.label_smoothing
        )
        cost, count = losses.sum(), weights.sum()
        if self._gathers():  # processes may have different numbers of anchors: average over anchors, not processes
            cost, count = distributed.total(cost), distributed.total(count)
        loss = mean_over_anchors(cost, count)
        if learning:
            self.center_share.copy_(share)
            self.steps.copy_(steps if full else torch.zeros_like(steps))
            if len(self.memory.embeddings):
                last = len(embeddings) // self.views
                self.memory.push(embeddings[-last:] if keys is None else keys, labels[-last:])
        return loss

    @torch.no_grad()
    def balance(
        self, centers: nn.Module, logits: Tensor, embeddings: Tensor, labels: Tensor, keys: Tensor | None = None
    ) -> float:
        """Shift the bias of `centers` so that training starts balanced, and return the shift. Call it before training.

        At the first step, all embeddings are alike, and the similarities weigh exp(1 / temperature) * references: the
        centers get almost no mass of the softmax, and every class logit is only pulled up until the biases have caught
        up. After the shift, the share of the centers, averaged over the batch, is the optimum of the loss: the mean of
        1 / (1 + alpha * positives). Differences between classes do not change.

        Args:
            centers: the last layer, which computed `logits`: any module that adds a `bias` of shape (C,) to them, such
                as `nn.Linear`.
            logits, embeddings, labels, keys: a first batch, as in a call. Nothing is pushed.

        >>> layer = nn.Linear(8, 3)
        >>> x, labels = torch.randn(4, 8), torch.tensor([0, 1, 0, 1])
        >>> criterion = GPaCoLoss(3, dim=8, temperature=0.07)
        >>> shift = criterion.balance(layer, layer(x), nn.functional.normalize(x, dim=1), labels)
        """
        bias = getattr(centers, "bias", None)
        if not isinstance(bias, Tensor) or bias.shape != (self.num_classes,):
            raise ValueError(
                f"balance() shifts the bias of the class layer, shape ({self.num_classes},), but "
                f"{type(centers).__name__} has no such bias; pass the nn.Linear(..., bias=True) of the logits"
            )
        labels = widened(labels)
        references, anchors = self._references(logits, embeddings, labels, keys)
        with no_autocast(logits):
            seen = contrast(references, anchors, self.temperature, self.num_classes, -100)
            logits = with_prior(logits, self._prior(self._center_share(references, keys)))
            ahead = logits.logsumexp(1) - seen.logsumexp  # share = sigmoid(ahead)
            wanted = (seen.share / (1 + self.alpha * seen.positives)).sum(1)
            valid = seen.share.any(1)
        ahead, wanted = (distributed.gather(x[valid]).cpu().double() for x in (ahead, wanted))
        target = float(wanted.mean())
        if not 0 < target < 1:  # nan without anchors, 1 without positives
            raise ValueError(
                "balance() needs alpha above 0 and a batch in which some image has a positive; pass all views, or a "
                "larger batch"
            )
        if not bool(ahead.isfinite().all()):
            raise ValueError("balance() needs finite logits and embeddings; nothing was changed")
        low, high = -float(ahead.max()), -float(ahead.min())
        edge = float(torch.tensor(target, dtype=torch.float64).logit())
        for _ in range(100):  # the share increases with the shift: bisect to machine precision
            shift = (low + high) / 2
            if float((ahead + shift + edge).sigmoid().mean()) < target:
                low = shift
            else:
                high = shift
        bias += high + edge
        return high + edge

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Half precision would round the prior.
        super()._apply(kept_wide(fn), recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        return (
            f"num_classes={self.num_classes}, alpha={self.alpha}, temperature={self.temperature}, views={self.views}, "
            f"prior={self.prior!r}, label_smoothing={self.label_smoothing}, contrast={self.contrast!r}"
        )

    def _gathers(self) -> bool:
        return self.contrast == "global" and self.training

    def _references(
        self, logits: Tensor, embeddings: Tensor, labels: Tensor, keys: Tensor | None
    ) -> tuple[list[References], slice]:
        """Check and return all references of a batch, and which rows of the first are anchors of this process."""
        self._check_batch(logits, embeddings, labels)
        references = batch_and_memory(embeddings, labels, None, None, self.num_classes, -100)
        if keys is not None:
            last = labels[-(len(labels) // self.views) :]
            references.append(checked_references(embeddings, References(keys, last), self.num_classes, -100, "keys"))
        anchors = slice(0, len(embeddings))
        if self._gathers():
            references, anchors = self._gathered(references)
        if self.training and len(self.memory.embeddings):  # every process already has the same memory
            held = References(*self.memory.read())
            references.append(checked_references(embeddings, held, self.num_classes, -100))
        return references, anchors

    def _check_batch(self, logits: Tensor, embeddings: Tensor, labels: Tensor) -> None:
        uneven = self.training and len(logits) % self.views
        if logits.dim() != 2 or logits.shape[1] != self.num_classes or uneven:
            raise ValueError(
                f"logits must be ({self.views} * B, {self.num_classes}): {self.views} views of each image, one view "
                f"after the other, got {tuple(logits.shape)}; set views or num_classes"
            )
        check_scores(logits, "logits")
        check_same_rows(logits, embeddings, "logits and embeddings")
        if len(labels) * self.views == len(logits) and self.views > 1 and len(labels):
            raise ValueError(
                f"labels must have one row per row of logits, got {len(labels)} for {len(logits)}: repeat them for "
                f"each view, labels.repeat({self.views}{', 1' if labels.dim() == 2 else ''})"
            )
        if self.center_share.dtype in (torch.float16, torch.bfloat16):  # built with such a default type
            raise ValueError("the criterion must be in float32 (criterion.float())")
        (rows, dim), wide = self.memory.embeddings.shape, embeddings.shape[-1]
        if rows and embeddings.dim() == 2 and wide != dim:
            raise ValueError(f"embeddings have {wide} columns, dim is {dim}: GPaCoLoss(..., dim={wide})")

    def _gathered(self, references: list[References]) -> tuple[list[References], slice]:
        """Return the batch, and keys, if any, of all processes, and which rows of the batch are ours."""
        counts = distributed.row_counts(references[0].embeddings)
        rows = [counts, [count // self.views for count in counts]]  # of the batch and of the keys
        gathered = [
            References(distributed.gather(embeddings, each), distributed.gather(labels, each))
            for each, (embeddings, labels) in zip(rows, references, strict=False)
        ]
        first = sum(counts[: distributed.rank()])
        return gathered, slice(first, first + len(references[0].embeddings))

    def _prior(self, center_share: Tensor) -> Tensor | None:
        if self.log_prior is None or self.prior != "unbiased":
            return self.log_prior
        return self.log_prior + center_share.log()

    @torch.no_grad()
    def _center_share(self, references: list[References], keys: Tensor | None) -> Tensor:
        """Return the batch mean of 1 / (1 + alpha * positives) for every class, as if all anchors had that class.

        The positives of an anchor would then be its own other views and the references of that class from other images,
        a number that does not depend on its label. So every step updates every class, even those not in the batch.
        """
        dtype = self.center_share.dtype
        shown = class_counts([references[0].labels], self.num_classes, -100, dtype)
        held = class_counts([part.labels for part in references], self.num_classes, -100, dtype)
        of_class = shown / shown.sum().clamp_min(1)  # anchors of that class: all others of it are positives
        share = of_class / (1 + self.alpha * (held - 1).clamp_min(0))
        appearances = self.views if keys is None else self.views + 1
        share += (1 - of_class) / (1 + self.alpha * (held + appearances - 1))
        return distributed.total(share) / distributed.world_size()
