"""A closed-form classifier: Gaussian classes with a shared covariance, corrected for the noise of class means.

A feature vector x is square-rooted (if no training feature is negative) and scaled to unit length. Class c has n_c
images with mean m_c; g is the mean of the m_c; S is the pooled covariance within classes; and

    A = (S + k tr(S) / d I)^-1
    logit_c(x) = (m_c - g)' A (x - g) - 1/2 (m_c - g)' A (m_c - g) + 1/2 tr(A S) / n_c

The first two terms are linear discriminant analysis. The last one is for rare classes: the mean of n_c images has noise
with covariance S / n_c, so its squared length is too large by tr(A S) / n_c on average, which would lower the logit of
a class with few images. docs/gaussian.md derives it. If every class has one image, S is 0. Then tr(S) is replaced by
the mean squared distance of the m_c from g, and the classifier is the nearest class mean.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SHRINKAGE = 3.0  # k; chosen by leave-one-out on three data sets, see docs/gaussian.md
_LEAST = 0.1  # smallest trace of S, as a share of the spread of class means: S is 0 for copies of one image
_NEVER = -1e4  # logit of a class without images
Blocks = Callable[[], Iterator[tuple[Tensor, Tensor]]]  # features (B, F) and labels (B,), block by block


class Gaussian(nn.Module):
    """Features (N, F) to logits (N, C)."""

    weight: Tensor
    bias: Tensor
    root: Tensor

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(num_classes, num_features))
        self.register_buffer("bias", torch.zeros(num_classes))
        self.register_buffer("root", torch.zeros(()))  # 1 if features are square-rooted, else 0

    def forward(self, features: Tensor) -> Tensor:
        x = F.normalize(torch.where(self.root > 0, features.clamp(min=0).sqrt(), features), dim=1)
        return F.linear(x, self.weight, self.bias)


def gaussian_from(tensors: dict[str, Tensor]) -> Gaussian:
    """Return a stored classifier."""
    classes, features = tensors["weight"].shape
    gaussian = Gaussian(features, classes)
    gaussian.load_state_dict(tensors)
    return gaussian


@torch.no_grad()
def fit_gaussian(
    blocks: Blocks,
    num_features: int,
    num_classes: int,
    *,
    shrinkage: float = SHRINKAGE,
    corrected: bool = True,
) -> Gaussian:
    """Fit the classifier in two passes over the features; without the last term if not `corrected`."""
    model = Gaussian(num_features, num_classes)
    negative = any(bool((features < 0).any()) for features, _ in blocks())
    model.root.fill_(0.0 if negative else 1.0)
    counts = torch.zeros(num_classes, dtype=torch.float64)
    sums = torch.zeros(num_classes, num_features, dtype=torch.float64)
    squares = torch.zeros(num_features, num_features, dtype=torch.float64)
    for features, labels in blocks():
        x = features.double()
        x = F.normalize(x if negative else x.sqrt(), dim=1)
        counts.index_add_(0, labels, torch.ones(len(labels), dtype=torch.float64))
        sums.index_add_(0, labels, x)
        squares += x.T @ x
    seen = counts > 0
    number = counts.clamp(min=1)[:, None]
    means = sums / number
    center = means[seen].mean(0)
    within = squares - means.T @ sums  # scatter around the class means
    freedom = counts.sum() - seen.sum()
    covariance = within / freedom if freedom else torch.zeros_like(within)
    away = means - center
    spread = away[seen].square().sum(1).mean()
    trace = covariance.trace().clamp(min=float(_LEAST * spread if freedom else spread))
    ridge = (shrinkage * trace / num_features).clamp(min=1e-12)
    inverse = torch.linalg.inv(covariance + ridge * torch.eye(num_features, dtype=torch.float64))
    weight = away @ inverse
    bias = -0.5 * (weight * away).sum(1) - weight @ center
    if corrected:
        bias += 0.5 * (inverse * covariance).sum() / number[:, 0]
    model.weight.copy_(torch.where(seen[:, None], weight, 0.0))
    model.bias.copy_(torch.where(seen, bias, _NEVER))
    return model
