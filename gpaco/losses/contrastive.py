"""Parametric contrastive losses: PaCo, GPaCo, SupCon and the segmentation variant are one soft-target cross entropy,

    scores  = [ logits + log prior | embeddings @ references.T / temperature ]     without the anchor itself
    targets = [ (smoothed) one-hot | alpha * same class ]                          each row normalized to sum 1
    loss    = mean over anchors of -sum(targets * log_softmax(scores))

computed without ever storing `scores` (contrast.py). Shapes: N anchors, C classes, D the length of an embedding, M
rows of a memory.
"""

import torch
from torch import Tensor

from gpaco.losses.checks import (
    at_least_float32,
    check_choice,
    check_contrast,
    check_match,
    check_number,
    check_same_rows,
    check_scores,
)
from gpaco.losses.contrast import References, batch_and_memory, contrast


def gpaco_loss(
    logits: Tensor,
    embeddings: Tensor,
    labels: Tensor,
    memory: Tensor | None = None,
    memory_labels: Tensor | None = None,
    *,
    alpha: float = 0.05,
    temperature: float = 0.2,
    log_prior: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Parametric contrastive loss of a batch in which every row is an anchor, and a reference for the others.

    For anchor i of class y, with the P other references of class y as its positives,

        logsumexp(scores_i) - (logit_y + alpha * sum of its positives' similarities) / (1 + alpha * P)

    With two views of each image in the batch and a memory this is GPaCo. With queries in the batch and momentum keys
    at the front of `memory` it is PaCo. A single row without references gives `F.cross_entropy`. The loss of a row of
    probabilities is the weighted mean of the losses of its classes, where the positives of class c are all references,
    weighted by their own probability of c; so mixup and cutmix work as with cross entropy.

    Args:
        logits: (N, C), the scores of the class centers, without temperature.
        embeddings: (N, D), of unit length.
        labels: class indices (N,) or rows of probabilities (N, C). Rows labeled `ignore_index`, or with probabilities
            that are all 0, are neither anchors nor positives, but remain references.
        memory: (M, D), additional references. They get a gradient only if they require one.
        memory_labels: (M,) or (M, C).
        alpha: weight of a positive; the weight of the center is 1. The paper's alpha.
        temperature: of the similarities. The paper's tau.
        log_prior: (C,), or (N, C), added to the logits; log q of the paper's rebalanced centers.
        label_smoothing: s gives 1 - s to the center of the label and s / (C - 1) to each other center.
        reduction: "mean" (over anchors; 0 if there are none), "sum" or "none" (0 for ignored rows).

    >>> logits, embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.eye(2)
    >>> gpaco_loss(logits, embeddings, torch.tensor([0, 1]))
    tensor(0.5514)
    """
    check_choice(reduction, "reduction", ("none", "mean", "sum"))
    check_scores(logits, "logits")
    check_same_rows(logits, embeddings, "logits and embeddings")
    references = batch_and_memory(embeddings, labels, memory, memory_labels, logits.shape[1], ignore_index)
    everyone = slice(0, len(embeddings))
    losses, weights = parametric_loss(
        logits, references, everyone, alpha, temperature, log_prior, label_smoothing, ignore_index
    )
    return _reduce(losses, weights, reduction)


def supcon_loss(
    embeddings: Tensor,
    labels: Tensor,
    memory: Tensor | None = None,
    memory_labels: Tensor | None = None,
    *,
    temperature: float = 0.2,
    log_prior: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Supervised contrastive loss (Khosla et al., 2020) with the averages outside the logarithm.

    For each anchor the mean over its positives of ``-log_softmax(embeddings @ references.T / temperature)``. An anchor
    without positives has loss 0 and is left out of the mean; with rows of probabilities the same holds for each class
    of an anchor of which the positives hold less than a thousandth of the mass. Arguments as in `gpaco_loss`. Labels
    may be any integers, unless there is a `log_prior` (C,), which is added to the similarity with each reference by its
    class: balanced softmax among samples.

    >>> supcon_loss(torch.eye(2)[[0, 0, 1]], torch.tensor([4, 4, 9]))
    tensor(0.0067)
    """
    check_choice(reduction, "reduction", ("none", "mean", "sum"))
    check_contrast(0, temperature)
    if log_prior is not None and log_prior.dim() != 1:
        raise ValueError(f"log_prior must be (C,), one number for each class, got shape {tuple(log_prior.shape)}")
    num_classes = None if log_prior is None else len(log_prior)
    references = batch_and_memory(embeddings, labels, memory, memory_labels, num_classes, ignore_index)
    with no_autocast(embeddings):
        seen = contrast(references, slice(0, len(embeddings)), temperature, num_classes, ignore_index, log_prior)
        # If others hardly have a class, its positives are a difference of nearly equal sums: only rounding error.
        share = seen.share * (seen.positives > 1e-3 * (seen.positives + seen.share))
        cost = seen.logsumexp.unsqueeze(1) - seen.pull / seen.positives.where(share > 0, 1)
        losses = (share * cost).sum(1)
    return _reduce(losses, share.sum(1), reduction)


def parametric_loss(
    logits: Tensor,
    references: list[References],
    anchors: slice,
    alpha: float,
    temperature: float,
    log_prior: Tensor | None,
    label_smoothing: float,
    ignore_index: int = -100,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each anchor and whether it counts. Anchors are the given rows of the first references."""
    num_classes = logits.shape[1]
    labels = references[0].labels[anchors]
    check_options(num_classes, alpha, temperature, label_smoothing)
    check_match(logits, references[0].embeddings, "logits and embeddings")
    with no_autocast(logits):
        logits = with_prior(logits, log_prior)
        seen = contrast(references, anchors, temperature, num_classes, ignore_index)
        total = torch.logaddexp(logits.logsumexp(1), seen.logsumexp).unsqueeze(1)
        target = logits
        if label_smoothing:
            other = label_smoothing / (num_classes - 1)
            target = (1 - label_smoothing - other) * logits + other * logits.sum(1, keepdim=True)
        if labels.dim() == 1:
            target = target.gather(1, labels.where(labels != ignore_index, 0).long().unsqueeze(1))
        cost = total - (target + alpha * seen.pull) / (1 + alpha * seen.positives)
        # A class without a share in the label may be masked, with a logit of -inf.
        return (seen.share * cost.where(seen.share > 0, 0)).sum(1), seen.share.any(1)


def with_prior(logits: Tensor, log_prior: Tensor | None) -> Tensor:
    logits = at_least_float32(logits)
    if log_prior is None:
        return logits
    if log_prior.shape not in (logits.shape[1:], logits.shape):
        raise ValueError(f"log_prior must be ({logits.shape[1]},), one per class, got {tuple(log_prior.shape)}")
    return logits + log_prior.to(logits)


def check_options(num_classes: int, alpha: float, temperature: float, label_smoothing: float) -> None:
    check_contrast(alpha, temperature)
    check_number(label_smoothing, "label_smoothing", 0, 1)
    if label_smoothing and num_classes == 1:
        raise ValueError("label_smoothing needs at least two classes, got one; set it to 0")


def no_autocast(x: Tensor) -> torch.autocast:
    # Similarities and sums are computed in float32 or float64 even under autocast.
    return torch.autocast(x.device.type, enabled=False)


def mean_over_anchors(losses: Tensor, weights: Tensor) -> Tensor:
    return losses / weights.where(weights > 0, 1)  # 0, not nan, if there is no anchor


def _reduce(losses: Tensor, weights: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else mean_over_anchors(losses.sum(), weights.sum())
