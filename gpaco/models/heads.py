"""Class centers that are not a plain linear layer: features (N, F) -> logits (N, C).

A head with `parts` gives the loss something other than its test-time logits: (N, K, C) for K branches or experts, or
different logits.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.losses.checks import at_least_float32
from gpaco.losses.contrast import no_autocast
from gpaco.system import distributed


def unit(x: Tensor) -> Tensor:
    """Return rows of unit length, in at least float32: in half precision, the length would be off by thousandths."""
    return F.normalize(at_least_float32(x), dim=-1)


class Cosine(nn.Module):
    """`scale` times the cosine between the features and the center of each class."""

    def __init__(self, num_features: int, num_classes: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(unit(torch.empty(num_classes, num_features).uniform_(-1, 1)))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * _products(unit(features), unit(self.weight))


class Scaled(nn.Linear):
    """A linear layer whose logits are multiplied by a trained scale per class, which starts at 1."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__(num_features, num_classes)
        self.scale = nn.Parameter(torch.ones(num_classes))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * super().forward(features)


class Tempered(nn.Linear):
    """A linear layer whose logits are divided by a temperature."""

    def __init__(self, num_features: int, num_classes: int, temperature: float) -> None:
        super().__init__(num_features, num_classes)
        self.temperature = temperature

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features) / self.temperature


class NearestMean(nn.Module):
    """Minus the squared distance between hat(x - mean) and the centroid of each class."""

    mean: Tensor
    centroids: Tensor

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("centroids", torch.zeros(num_classes, num_features))
        self.unused = nn.Parameter(torch.zeros(1))  # an optimizer needs a parameter

    def forward(self, features: Tensor) -> Tensor:
        u = unit(features - self.mean)
        squares = u.square().sum(1, keepdim=True) + at_least_float32(self.centroids).square().sum(1)
        return 2 * _products(u, self.centroids) - squares


class CausalHead(nn.Module):
    """The classifier of De-confound-TDE: pieces of features and centers, each normalized.

    In training (`parts`) with pieces x^k, w_j^k, k = 1..K:  scale / K * sum_k w_j^k . x^k / ((|w_j^k| + 1/32) |x^k|).
    At test time, `effect` times its projection onto the mean direction of the training features is subtracted from
    x^k / |x^k|.
    """

    direction: Tensor

    gamma, momentum = 1 / 32, 0.9

    def __init__(self, num_features: int, num_classes: int, pieces: int, scale: float, effect: float) -> None:
        super().__init__()
        self.pieces, self.scale, self.effect = pieces, scale, effect
        bound = num_features**-0.5
        self.weight = nn.Parameter(torch.empty(num_classes, num_features).uniform_(-bound, bound))
        self.register_buffer("direction", torch.zeros(num_features))  # a sum: only its direction is used

    def parts(self, features: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                mean = distributed.sum_counts(features.detach().mean(0)) / distributed.world_size()
                self.direction.mul_(self.momentum).add_(mean.to(self.direction))
        return self._logits(self._pieces(features))

    def forward(self, features: Tensor) -> Tensor:
        x = self._pieces(features)
        away = self._pieces(self.direction[None])
        return self._logits(x - self.effect * (x * away).sum(-1, keepdim=True) * away)

    def _pieces(self, rows: Tensor) -> Tensor:
        return unit(rows.unflatten(1, (self.pieces, -1)))

    def _logits(self, x: Tensor) -> Tensor:
        w = self.weight.view(len(self.weight), self.pieces, -1)
        w = w / (w.norm(dim=-1, keepdim=True) + self.gamma)
        return self.scale / self.pieces * _products(x.flatten(1), w.flatten(1))


class Shared(nn.Linear):
    """One linear layer for the features of several branches; the logits are summed.

    With `power`, the centers are divided by their norm to this power at test time, and the bias is dropped.
    """

    def __init__(self, num_features: int, num_classes: int, branches: int, power: float) -> None:
        super().__init__(num_features, num_classes)
        self.branches, self.power = branches, power

    def parts(self, features: Tensor) -> Tensor:
        return F.linear(features.unflatten(1, (self.branches, -1)), self.weight, self.bias)

    def forward(self, features: Tensor) -> Tensor:
        if not self.power:
            return self.parts(features).sum(1)
        weight = self.weight / self.weight.norm(dim=1, keepdim=True) ** self.power
        return F.linear(features.unflatten(1, (self.branches, -1)).sum(1), weight)


class ExpertCosines(nn.Module):
    """A cosine classifier for each expert; the logits are averaged."""

    def __init__(self, num_features: int, num_classes: int, experts: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(unit(torch.empty(experts, num_classes, num_features).uniform_(-1, 1)))

    def parts(self, features: Tensor) -> Tensor:
        x = unit(features.unflatten(1, (len(self.weight), -1)))
        with no_autocast(x):
            return self.scale * torch.einsum("nef,ecf->nec", x, unit(self.weight))

    def forward(self, features: Tensor) -> Tensor:
        return self.parts(features).mean(1)


class MetaEmbedding(nn.Module):
    """OLTR's dynamic meta-embedding and cosine classifier.

    o = softmax(H f), v = r (f + tanh(S f) * sum_j o_j c_j), reachability r = 10 / min_j |f - c_j|, and the logits are
    16 v / (1 + |v|) . hat(w_j). `parts` adds the squared distances to the centroids twice: with a gradient to the
    features, and with one to the centroids.
    """

    def __init__(self, num_features: int, num_classes: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.hallucinator = nn.Linear(num_features, num_classes)
        self.selector = nn.Linear(num_features, num_features)
        bound = num_features**-0.5
        self.directions = nn.Parameter(torch.empty(num_classes, num_features).uniform_(-bound, bound))
        self.centroids = nn.Parameter(torch.zeros(num_classes, num_features))

    def parts(self, features: Tensor) -> Tensor:
        f = at_least_float32(features)
        return torch.stack(
            [self(features), _squares(f, self.centroids.detach()), _squares(f.detach(), self.centroids)], 1
        )

    def forward(self, features: Tensor) -> Tensor:
        f, memory = at_least_float32(features), at_least_float32(self.centroids.detach())
        recalled = self.hallucinator(features).softmax(1).to(f) @ memory
        nearest = _squares(f, memory).min(1, keepdim=True).values
        v = 10 / nearest.clamp_min(1e-12).sqrt() * (f + torch.tanh(self.selector(features)) * recalled)
        return self.scale * _products(v / (1 + v.norm(dim=1, keepdim=True)), unit(self.directions))


def _squares(x: Tensor, centroids: Tensor) -> Tensor:
    """Return squared distances (N, C), in at least float32: they are small differences of large numbers."""
    with no_autocast(x):
        x, centroids = at_least_float32(x), at_least_float32(centroids)
        both = x.square().sum(1, keepdim=True) + centroids.square().sum(1)
        return (both - 2 * F.linear(x, centroids)).clamp_min(0)


def _products(x: Tensor, centers: Tensor) -> Tensor:
    """Return the product of each row with each center, without autocast: half precision has few values near 1."""
    with no_autocast(x):
        return F.linear(at_least_float32(x), at_least_float32(centers))
