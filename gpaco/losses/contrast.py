"""Anchors compared with references: the computation behind every contrastive loss here.

The logsumexp of the similarities is computed in blocks (similarity.py). The sum over the positives of an anchor needs
no similarity matrix: it is the product of the anchor with the sum of the embeddings of its class, minus itself.

Shapes: N anchors, R references, C classes, D the length of an embedding, J columns: 1 for class indices (only the
class of the label), C for rows of probabilities.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gpaco.losses.checks import (
    at_least_float32,
    check_contrast,
    check_labels,
    check_match,
    check_number,
    check_pairs,
    check_scores,
    widened,
)
from gpaco.losses.pairs import from_pairs
from gpaco.losses.self_similarity import self_similarity_logsumexp
from gpaco.losses.similarity import similarity_logsumexp


class References(NamedTuple):
    """Embeddings (R, D) and their labels: (R,), (R, C), or pairs (R, 2, 2) (pairs.py)."""

    embeddings: Tensor
    labels: Tensor


class Contrast(NamedTuple):
    """Each anchor compared with its references."""

    share: Tensor  # (N, J) probability of each class; 0 for an ignored row
    logsumexp: Tensor  # (N,) of the similarities to all references
    pull: Tensor  # (N, J) sum of the similarities to the positives of each class
    positives: Tensor  # (N, J) number of these positives


def batch_and_memory(
    embeddings: Tensor,
    labels: Tensor,
    memory: Tensor | None,
    memory_labels: Tensor | None,
    num_classes: int | None,
    ignore_index: int,
) -> list[References]:
    """Return the batch and the memory, if any. Without `num_classes`, labels may be any integers."""
    if (memory is None) != (memory_labels is None):
        raise ValueError("pass both memory and memory_labels, or neither")
    if num_classes is None:
        num_classes = _columns(labels, memory_labels)
    labels = widened(labels)
    check_scores(embeddings, "embeddings", "(N, D)")
    check_labels(labels, embeddings, num_classes, ignore_index)
    references = [References(embeddings, labels)]
    if memory is not None and memory_labels is not None:
        held = References(memory, widened(memory_labels))
        references.append(checked_references(embeddings, held, num_classes, ignore_index))
    return references


def checked_references(
    embeddings: Tensor, references: References, num_classes: int | None, ignore_index: int, name: str = "memory"
) -> References:
    """Return additional references, after checking that they match the embeddings."""
    rows = references.embeddings
    check_scores(rows, name, "(M, D)")
    check_match(embeddings, rows, f"embeddings and {name}")
    if rows.shape[1] != embeddings.shape[1]:
        raise ValueError(f"rows of {name} must be as long as embeddings, {embeddings.shape[1]}, got {rows.shape[1]}")
    if references.labels.dim() == 3:
        check_pairs(references.labels, rows, num_classes, f"{name}_labels")
    else:
        check_labels(references.labels, rows, num_classes, ignore_index, f"{name}_labels")
    return references


def contrast(
    references: list[References],
    anchors: slice,
    temperature: float,
    num_classes: int | None,
    ignore_index: int,
    log_prior: Tensor | None = None,
) -> Contrast:
    """Compare the rows `anchors` of the first part with all references except themselves.

    `log_prior` (C,) is added to each similarity according to the class of the reference: references of frequent classes
    weigh more in the logsumexp, as in balanced softmax. It needs `num_classes`.
    """
    num_classes = num_classes or _columns(*(part.labels for part in references))
    rows = sum(len(part.labels) for part in references)
    indices = all(part.labels.dim() == 1 for part in references)
    if num_classes is None or (2 * rows < num_classes and indices and log_prior is None):  # fewer sums
        references, num_classes = _renumber(references, ignore_index)
        ignore_index = -1
    references = [References(at_least_float32(part.embeddings), part.labels) for part in references]
    scaled = references[0].embeddings[anchors] / temperature
    if log_prior is not None:
        scaled, references = _with_prior_column(scaled, references, log_prior, ignore_index)
    embeddings, labels = references[0].embeddings[anchors], references[0].labels[anchors]

    if log_prior is None and (anchors.start, anchors.stop) == (0, references[0].embeddings.shape[0]):
        parts = [self_similarity_logsumexp(references[0].embeddings, 1 / temperature)]
    else:
        parts = [similarity_logsumexp(scaled, references[0].embeddings, own=anchors.start)]
    parts += [similarity_logsumexp(scaled, part.embeddings) for part in references[1:]]
    # An anchor without references has -inf here. A large negative number avoids nan in the gradient.
    lse = torch.stack(parts).clamp_min(torch.finfo(scaled.dtype).min / 4).logsumexp(0)

    sums = torch.stack([_class_sums(part, num_classes, ignore_index) for part in references]).sum(0)
    counts = class_counts([part.labels for part in references], num_classes, ignore_index, embeddings.dtype)
    if labels.dim() == 1:
        valid = labels != ignore_index
        index = labels.where(valid, 0).long()
        share = valid.to(embeddings.dtype).unsqueeze(1)
        pull = (scaled * sums[index]).sum(1, keepdim=True)
        counts = counts[index].unsqueeze(1)
    else:
        share = labels.to(embeddings.dtype)
        pull = scaled @ sums.t()
    itself = (scaled * embeddings).sum(1, keepdim=True)
    return Contrast(share, lse, pull - share * itself, counts - share)


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
    """Return the loss of each anchor, and whether it is valid. Anchors are the given rows of the first references."""
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
        # A class with probability 0 in the label may be masked, with a logit of -inf.
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


def _with_prior_column(
    scaled: Tensor, references: list[References], log_prior: Tensor, ignore_index: int
) -> tuple[Tensor, list[References]]:
    """Append a column of ones to the anchors and of priors to the references, so that products include the prior.

    The prior of a reference is that of its class or mixture, or the mean prior if it is ignored.
    """
    log_prior = log_prior.to(scaled)
    prior, wider = log_prior.exp(), []
    for embeddings, labels in references:
        if labels.dim() == 3:
            classes, shares = from_pairs(labels)
            column = torch.where(shares.any(1), (prior[classes] * shares.to(prior)).sum(1), prior.mean()).log()
        elif labels.dim() == 2:
            column = torch.where(labels.any(1), labels.to(prior) @ prior, prior.mean()).log()
        else:
            ignored = labels == ignore_index
            column = torch.where(ignored, prior.mean().log(), log_prior[labels.masked_fill(ignored, 0)])
        wider.append(References(torch.cat([embeddings, column.unsqueeze(1)], 1), labels))
    return torch.cat([scaled, scaled.new_ones(len(scaled), 1)], 1), wider


def class_counts(labels: list[Tensor], num_classes: int, ignore_index: int, dtype: torch.dtype) -> Tensor:
    """Return the number of references of each class, (C,); for probabilities, their sum."""
    total = torch.zeros(num_classes + 1, dtype=dtype, device=labels[0].device)
    for part in labels:
        if part.dim() == 3:
            classes, shares = from_pairs(part)
            total.index_add_(0, classes.flatten(), shares.flatten().to(dtype))
        elif part.dim() == 2:
            total[:-1] += part.to(dtype).sum(0)
        else:
            place = _place(part, num_classes, ignore_index)
            total.index_add_(0, place, torch.ones_like(place, dtype=dtype))
    return total[:-1]


def _class_sums(part: References, num_classes: int, ignore_index: int) -> Tensor:
    """Return the sum of the embeddings of each class, (C, D)."""
    if part.labels.dim() == 2:
        return part.labels.to(part.embeddings.dtype).t() @ part.embeddings
    zeros = part.embeddings.new_zeros(num_classes + 1, part.embeddings.shape[1])
    if part.labels.dim() == 3:
        classes, shares = from_pairs(part.labels)
        for k in range(2):
            zeros = zeros.index_add(0, classes[:, k], shares[:, k : k + 1].to(zeros) * part.embeddings)
        return zeros[:-1]
    return zeros.index_add(0, _place(part.labels, num_classes, ignore_index), part.embeddings)[:-1]


def _place(labels: Tensor, num_classes: int, ignore_index: int) -> Tensor:
    # Ignored rows get an extra class at the end, which is dropped later.
    return labels.where(labels != ignore_index, num_classes).long()


def _columns(*labels: Tensor | None) -> int | None:
    return next((part.shape[1] for part in labels if part is not None and part.dim() == 2), None)


def _renumber(references: list[References], ignore_index: int) -> tuple[list[References], int]:
    """Return the references with labels renumbered from 0 (ignored: -1), and a bound on the number of classes.

    The bound is the number of references, so that shapes do not depend on values.
    """
    labels = torch.cat([part.labels.long() for part in references])
    order = labels.argsort()
    new = labels[order].diff().ne(0).cumsum(0)
    numbers = torch.zeros_like(labels).index_copy(0, order[1:], new)
    numbers = numbers.where(labels != ignore_index, -1)
    split = numbers.split([len(part.labels) for part in references])
    return [References(part.embeddings, own) for part, own in zip(references, split, strict=True)], len(labels)
