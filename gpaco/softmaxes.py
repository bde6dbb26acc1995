"""The loss of every method as softmaxes with targets, to look into: what is asked for, and what a model gives.

Every loss here is a sum of soft-target cross entropies (focal with a factor): parametric contrast has one over centres
and references, the plain methods one over the centres, SupCon one over references, multitask the last two. Dense and
plain where the losses themselves are fast; tests hold the two together.

Shapes: A anchors, C classes, R references, D numbers in an embedding.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gpaco.classical import class_balanced_weights
from gpaco.contrast import reference_priors
from gpaco.settings import MethodSettings

_FAR = -1e4  # a similarity that gets no mass at any temperature


class Softmax(NamedTuple):
    """One softmax of a loss: columns for `centres` classes, or none, then for references, or none."""

    scores: Tensor  # (A, centres + R)
    targets: Tensor  # the same; times the weight that the loss gives to an anchor
    centres: int
    gamma: float = 0.0

    def losses(self) -> Tensor:
        log_p = self.scores.log_softmax(1)
        factor = (-log_p.expm1()).clamp_min(0) ** self.gamma if self.gamma else 1
        return -(self.targets * factor * log_p).sum(1)


class References(NamedTuple):
    """What anchors are compared with beside their own other views: embeddings (R, D), labels, and which image it is."""

    embeddings: Tensor
    labels: Tensor  # (R,) or (R, C)
    image: Tensor  # (R,) index among the samples; -1 in a memory


def compare(
    settings: MethodSettings,
    state: dict[str, Tensor],
    anchors: Tensor,
    labels: Tensor,
    image: Tensor,
    others: Tensor,
    references: References,
) -> tuple[Tensor, Tensor]:
    """Similarities of the anchors with all that they are compared with, (A, R), and whether each is a positive.

    A prior of the references, if the method has one, is in the similarities, times the temperature.

    Args:
        state: what the method has saved: its counts.
        others: (A, n, D) further views or keys of the anchor's own image; other references of that image are left out.
    """
    own = torch.einsum("ad,and->an", anchors, others)
    similar = anchors @ references.embeddings.t()
    if references.labels.dim() == 1:
        same = (labels.unsqueeze(1) == references.labels).to(anchors.dtype)
    else:
        same = references.labels.t()[labels].to(anchors.dtype)
    if settings.rebalance == "prior" and settings.name in ("supcon", "multitask"):
        log_prior = (state["counts"] / state["counts"].sum()).log().to(anchors)
        own = own + settings.temperature * reference_priors(labels, log_prior).unsqueeze(1)
        similar = similar + settings.temperature * reference_priors(references.labels, log_prior)
    itself = image.unsqueeze(1) == references.image
    similar, same = similar.masked_fill(itself, _FAR), same.masked_fill(itself, 0)
    return torch.cat([own, similar], 1), torch.cat([torch.ones_like(own), same], 1)


def softmaxes(
    settings: MethodSettings,
    state: dict[str, Tensor],
    shares: Tensor,
    logits: Tensor,
    labels: Tensor,
    similar: Tensor | None,
    same: Tensor | None,
) -> list[Softmax]:
    """The loss of each anchor under a method, as the softmaxes it is the sum of.

    Args:
        state: what the method has saved: its prior, counts and weights.
        shares: (C,) how often training shows each class; weights by class are divided by their mean over these, as a
            mean over a batch does.
        similar, same: (A, R) from `compare`, for methods that contrast.
    """
    num_classes = logits.shape[1]
    one_hot = F.one_hot(labels, num_classes).to(logits.dtype)
    smoothing, name = settings.label_smoothing, settings.name
    if name in ("gpaco", "paco") and similar is not None and same is not None:
        prior = state.get("loss.log_prior", torch.zeros_like(logits[0]))
        if settings.prior == "unbiased":
            prior = prior + state["loss.centre_share"].log()
        if smoothing:
            one_hot = (1 - smoothing) * one_hot + smoothing / (num_classes - 1) * (1 - one_hot)
        whole = 1 + settings.alpha * same.sum(1, keepdim=True)
        scores = torch.cat([logits + prior, similar / settings.temperature], 1)
        return [Softmax(scores, torch.cat([one_hot, settings.alpha * same], 1) / whole, num_classes)]
    parts = []
    if name != "supcon":
        base = settings.base if name == "multitask" else name
        if base == "balanced-softmax":
            logits = logits + (state["counts"] / state["counts"].sum()).log().to(logits)
        if base != "focal":
            one_hot = (1 - smoothing) * one_hot + smoothing / num_classes
        if base == "class-balanced":
            weights = class_balanced_weights(state["counts"], beta=settings.beta).to(logits)
            one_hot = one_hot * weights / (weights * shares).sum()
        parts.append(Softmax(logits, one_hot, num_classes, settings.gamma if base == "focal" else 0.0))
    if similar is not None and same is not None:
        targets = same / same.sum(1, keepdim=True).clamp_min(1e-12)
        if name == "multitask":
            targets = targets * settings.weight
        if settings.rebalance == "weights":
            weights = state["class_weights"]
            targets = targets * (weights[labels] / (weights * shares).sum()).unsqueeze(1)
        parts.append(Softmax(similar / settings.temperature, targets, 0))
    return parts


def probabilities(parts: list[Softmax], labels: Tensor, same: Tensor | None) -> list[Tensor]:
    """Of each anchor: mass on its centre, on all centres, on its positives, their number, and what is asked for."""
    nothing = torch.full_like(labels, torch.nan, dtype=torch.float32)
    centre = p_sup = together = positives = asked_centre = asked_together = nothing
    for part in parts:
        p, asked = part.scores.softmax(1), part.targets / part.targets.sum(1, keepdim=True).clamp_min(1e-12)
        if part.centres:
            index = labels.unsqueeze(1)
            centre, asked_centre = p.gather(1, index).squeeze(1), asked.gather(1, index).squeeze(1)
        if same is not None and p.shape[1] > part.centres:
            positives = same.sum(1)
            together, asked_together = (p[:, part.centres :] * same).sum(1), asked[:, part.centres :].sum(1)
            if part.centres:
                p_sup = p[:, : part.centres].sum(1)
            else:  # an anchor without positives does not count
                together, asked_together = (x.where(positives > 0, torch.nan) for x in (together, asked_together))
    return [centre, p_sup, together, positives, asked_centre, asked_together]
