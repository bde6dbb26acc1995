"""Classical losses for long-tailed data, as plain functions.

Each is `F.cross_entropy` on changed logits or with changed weights, takes class indices (N,) or rows of probabilities
(N, C), and reduces as `F.cross_entropy` does, except that the loss is 0 if every row is ignored.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from gpaco.losses.checks import (
    Counts,
    at_least_float32,
    check_choice,
    check_labels,
    check_number,
    check_scores,
    check_weight,
    class_counts_tensor,
    log_frequencies,
    reduced,
    widened,
)


def balanced_softmax_loss(
    logits: Tensor,
    labels: Tensor,
    class_counts: Counts,
    *,
    tau: float = 1.0,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy of ``logits + tau * log(class_counts / total)``: the logits learn log p(x | class).

    tau = 1 is balanced softmax (Ren et al., 2020); any other tau is the logit-adjusted loss (Menon et al., 2021).
    `label_smoothing` works as in `F.cross_entropy`.

    >>> logits = torch.tensor([[2.0, 0.0]])
    >>> balanced_softmax_loss(logits, torch.tensor([0]), [1, 1])
    tensor(0.1269)
    >>> balanced_softmax_loss(logits, torch.tensor([0]), [10, 90])  # the rare class needs a larger margin
    tensor(0.7966)
    """
    check_number(tau, "tau", 0)
    check_number(label_smoothing, "label_smoothing", 0, 1)
    logits, labels = _checked(logits, labels, ignore_index, reduction)
    prior = _as(log_frequencies(class_counts, logits.shape[1]), logits)
    logits = logits + tau * prior
    losses = F.cross_entropy(
        logits if labels.dim() == 1 else _finite(logits),
        labels,
        ignore_index=ignore_index,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    if labels.dim() == 2:
        valid = labels.any(1)
        return reduced(losses * valid, valid, reduction)  # smoothing would give rows of zeros a loss
    return reduced(losses, labels != ignore_index, reduction)


def focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 2.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy times (1 - p)^gamma, with p the probability of the label (Lin et al., 2017).

    gamma = 0 is cross entropy. `weight` (C,) multiplies each sample by the weight of its class. As in the paper, the
    mean is over samples, not divided by the weights.

    >>> focal_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.0018)
    """
    check_number(gamma, "gamma", 0)
    logits, labels = _checked(logits, labels, ignore_index, reduction, weight)
    log_p = _finite(logits.log_softmax(1))
    losses = -((-log_p.expm1()).clamp_min(0) ** gamma) * log_p if gamma else -log_p
    if weight is not None:
        losses = losses * weight.to(losses)
    if labels.dim() == 2:
        return reduced((losses * labels).sum(1), labels.any(1), reduction)
    valid = labels != ignore_index
    picked = losses.gather(1, labels.where(valid, 0).unsqueeze(1)).squeeze(1)
    return reduced(picked * valid, valid, reduction)


def class_balanced_weights(class_counts: Counts, *, beta: float = 0.999) -> Tensor:
    """Weights (C,) by the effective number of samples, ``(1 - beta) / (1 - beta**n)``, with mean 1 (Cui et al., 2019).

    beta = 0 weights all classes equally; beta near 1 weights them by 1 / n. Use them as the `weight` of other losses.

    >>> class_balanced_weights([1000, 100, 10])
    tensor([0.0422, 0.2800, 2.6778])
    """
    check_number(beta, "beta", 0, 1)
    counts = class_counts_tensor(class_counts, len(class_counts))
    weights = (1 - beta) / -torch.expm1(counts * torch.log(torch.tensor(beta, dtype=torch.float64)))
    weights = (weights / weights.mean()).float()
    return weights.to(class_counts.device) if isinstance(class_counts, Tensor) else weights


def _checked(
    logits: Tensor, labels: Tensor, ignore_index: int, reduction: str, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    labels = widened(labels)
    check_scores(logits, "logits")
    check_labels(labels, logits, logits.shape[1], ignore_index)
    check_choice(reduction, "reduction", ("none", "mean", "sum"))
    check_weight(weight, logits.shape[1])
    logits = at_least_float32(logits)
    return logits, labels.to(logits.dtype) if labels.is_floating_point() else labels


def _as(x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype).to(like.device)  # in this order: not every device has float64


def _finite(x: Tensor) -> Tensor:
    # A masked class has a logit of -inf, and its label of 0 must give 0, not 0 * inf.
    return x.clamp_min(torch.finfo(x.dtype).min / 4)
