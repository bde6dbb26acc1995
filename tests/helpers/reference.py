"""The losses as Python loops straight from the paper's equations: slow, but easy to check.

`gpaco_anchor` is the equation of center learning rebalance, scaled by the sum of the weights as in the paper, for one
anchor and one class; the loss of a row of probabilities is the mixture over its classes. Everything is a scalar tensor,
so that autograd computes the gradient of the loops.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def as_rows(labels: Tensor, num_classes: int, ignore_index: int) -> Tensor:
    """Labels as rows of probabilities; an ignored one is a row of zeros."""
    if labels.dim() == 2:
        return labels.double()
    keep = labels != ignore_index
    return F.one_hot(labels.where(keep, 0).long(), num_classes).double() * keep.unsqueeze(1)


def similarity(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    return sum(a[d] * b[d] for d in range(len(a))) / temperature


def neg_log_softmax(score: Tensor, scores: list[Tensor]) -> Tensor:
    top = max(float(s.detach()) for s in scores)
    return torch.log(sum(torch.exp(s - top) for s in scores)) + top - score


def gpaco_anchor(
    i: int, c: int, logits: Tensor, rows: Tensor, references: Tensor, alpha: float, t: float, s: float
) -> Tensor:
    """Return the loss of anchor i if its class is c."""
    num_classes = logits.shape[1]
    others = [k for k in range(len(references)) if k != i]
    z = {k: similarity(references[i], references[k], t) for k in others}
    scores = [logits[i, j] for j in range(num_classes)] + [z[k] for k in others]
    cost, weight = torch.zeros((), dtype=torch.float64), 0.0
    for j in range(num_classes):
        w = 1 - s if j == c else s / (num_classes - 1)
        cost = cost + w * neg_log_softmax(logits[i, j], scores)
        weight = weight + w
    for k in others:
        w = alpha * float(rows[k, c])
        cost = cost + w * neg_log_softmax(z[k], scores)
        weight = weight + w
    return cost / weight


def gpaco(
    logits: Tensor,
    embeddings: Tensor,
    labels: Tensor,
    memory: Tensor,
    memory_labels: Tensor,
    alpha: float,
    temperature: float,
    log_prior: Tensor,
    label_smoothing: float,
    ignore_index: int,
) -> Tensor:
    """Return the loss of each row, 0 for an ignored one."""
    num_classes = logits.shape[1]
    references = torch.cat([embeddings, memory])
    rows = torch.cat([as_rows(x, num_classes, ignore_index) for x in (labels, memory_labels)])
    logits = logits + log_prior
    costs = []
    for i in range(len(logits)):
        cost = torch.zeros((), dtype=torch.float64)
        for c in range(num_classes):
            if rows[i, c] > 0:
                one = gpaco_anchor(i, c, logits, rows, references, alpha, temperature, label_smoothing)
                cost = cost + float(rows[i, c]) * one
        costs.append(cost)
    return torch.stack(costs)


def supcon(
    embeddings: Tensor,
    labels: Tensor,
    memory: Tensor,
    memory_labels: Tensor,
    num_classes: int,
    temperature: float,
    ignore_index: int,
    log_prior: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and its weight: the share of its classes that have positives.

    With a prior, exp(similarity) of each reference is multiplied by the frequency of its class: balanced softmax.
    """
    references = torch.cat([embeddings, memory])
    rows = torch.cat([as_rows(x, num_classes, ignore_index) for x in (labels, memory_labels)])
    costs, counted = [], []
    for i in range(len(embeddings)):
        cost, count = torch.zeros((), dtype=torch.float64), 0.0
        others = [k for k in range(len(references)) if k != i]
        z = {k: similarity(references[i], references[k], temperature) for k in others}
        if log_prior is not None:
            q = log_prior.exp()
            shares = {k: (rows[k] * q).sum() if rows[k].any() else q.mean() for k in others}
            z = {k: z[k] + shares[k].log() for k in others}
        for c in range(num_classes):
            positives = sum(float(rows[k, c]) for k in others)
            if rows[i, c] > 0 and positives > 1e-3 * (positives + float(rows[i, c])):
                terms = sum(float(rows[k, c]) * neg_log_softmax(z[k], list(z.values())) for k in others)
                cost = cost + float(rows[i, c]) * terms / positives
                count += float(rows[i, c])
        costs.append(cost)
        counted.append(count)
    return torch.stack(costs), torch.tensor(counted, dtype=torch.float64)
