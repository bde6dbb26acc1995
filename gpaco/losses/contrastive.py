"""Parametric contrastive losses. PaCo, GPaCo, SupCon and the segmentation variant are one soft-target cross entropy,

    scores  = [ logits + log prior | embeddings @ references.T / temperature ]     without the anchor itself
    targets = [ (smoothed) one-hot | alpha * same class ]                          each row normalized to sum 1
    loss    = mean over anchors of -sum(targets * log_softmax(scores))

computed without ever storing `scores` (contrast.py). Shapes: N anchors, C classes, D the length of an embedding, M
rows of a memory.
"""

from torch import Tensor

from gpaco.losses.checks import check_choice, check_contrast, check_same_rows, check_scores, reduced
from gpaco.losses.contrast import batch_and_memory, contrast, no_autocast, parametric_loss


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
    """Parametric contrastive loss of a batch in which every row is an anchor and a reference for the others.

    For anchor i of class y, with the P other references of class y as its positives,

        logsumexp(scores_i) - (logit_y + alpha * sum of its positives' similarities) / (1 + alpha * P)

    With two views of each image in the batch and a memory, this is GPaCo. With queries in the batch and momentum keys
    at the front of `memory`, it is PaCo. A single row without references gives `F.cross_entropy`. The loss of a row of
    probabilities is the weighted mean of the losses of its classes, where the positives of class c are all references,
    weighted by their own probability of c; so mixup and cutmix work as with cross entropy.

    Args:
        logits: (N, C), the scores of the class centers, without temperature.
        embeddings: (N, D), of unit length.
        labels: class indices (N,) or rows of probabilities (N, C). Rows labeled `ignore_index`, or with probabilities
            that are all 0, are neither anchors nor positives, but are still references.
        memory: (M, D), additional references. They get a gradient only if they require one.
        memory_labels: (M,) or (M, C), or as `Memory.read` returns them.
        alpha: weight of a positive; the weight of the center is 1. The paper's alpha.
        temperature: temperature of the similarities. The paper's tau.
        log_prior: (C,), or (N, C), added to the logits; log q of the paper's rebalanced centers.
        label_smoothing: s gives 1 - s to the center of the label and s / (C - 1) to each other center.
        reduction: "mean" (over anchors; 0 if there are none), "sum" or "none" (0 for ignored rows).

    >>> import torch
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
    return reduced(losses, weights, reduction)


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

    The loss of an anchor is the mean over its positives of ``-log_softmax(embeddings @ references.T / temperature)``.
    An anchor without positives has loss 0 and is left out of the mean. With rows of probabilities, the same holds for
    each class of an anchor whose positives have less than a thousandth of the mass. Arguments are as in `gpaco_loss`.
    Labels may be any integers, unless there is a `log_prior` (C,), which is added to the similarity with each reference
    according to its class: balanced softmax among samples.

    >>> import torch
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
        # With almost no positives in a class, `positives` is the difference of nearly equal sums: only rounding error.
        share = seen.share * (seen.positives > 1e-3 * (seen.positives + seen.share))
        cost = seen.logsumexp.unsqueeze(1) - seen.pull / seen.positives.where(share > 0, 1)
        losses = (share * cost).sum(1)
    return reduced(losses, share.sum(1), reduction)
