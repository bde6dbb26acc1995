"""What a method changes in the network, as data, and the classifier built from it.

`methods.network` says what a method changes; the card of a run stores it, so that the network can be rebuilt. In all
cases, `classify` returns logits (N, C).
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.errors import UserError
from gpaco.losses.checks import at_least_float32
from gpaco.models import heads
from gpaco.models.classifier import Classifier
from gpaco.models.links import last_block, last_stages, links, maps, run


@dataclass(frozen=True)
class Network:
    """The head (one in `_head`), the body (plain or one in BODIES), and their numbers."""

    head: str = "linear"
    body: str = "plain"
    scale: float = 1.0  # factor on the logits of cosine, causal, experts and meta; the temperature of tempered
    number: int = 1  # pieces of causal, branches, experts
    effect: float = 0.0  # of causal
    power: float = 0.0  # of shared
    narrow: bool = False  # the last two stages have three quarters of the channels
    border: int = 0  # how many pixels a test image is larger than each of its five crops; 0: one crop


class Prototyped(Classifier):
    """BCL: logits of the first view; embeddings of the others, followed by a prototype of each class.

    A prototype is an embedding of the class center, computed by separate layers.
    """

    def __init__(self, backbone: nn.Module, num_features: int, num_classes: int, **rest: Any) -> None:
        super().__init__(backbone, num_features, num_classes, **rest)
        self.prototypes = cast(nn.Sequential, deepcopy(self.projector))
        for layer in self.prototypes:
            if isinstance(layer, nn.Linear | nn.BatchNorm1d):
                layer.reset_parameters()

    def forward(self, *views: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(torch.cat(views))  # one batch for batch norm, as released
        first = features[: len(views[0])]
        others = features[len(first) :] if len(views) > 1 else first
        prototypes = F.normalize(at_least_float32(self.prototypes(self.centers.weight)), dim=1)
        return self.centers(first), torch.cat([self.embed(others), prototypes])


class Bilateral(Classifier):
    """BBN: a second copy of the last block. At test time, an image passes both; in training, each view its own."""

    def __init__(self, backbone: nn.Module, num_features: int, num_classes: int, **rest: Any) -> None:
        super().__init__(backbone, num_features, num_classes, **rest)
        self.second = nn.Sequential(*(deepcopy(one) for _, one in links(backbone)[last_block(backbone) :]))

    def pooled(self, images: Tensor) -> Tensor:
        place = last_block(self.backbone)
        modules = [one for _, one in links(self.backbone)]
        shared = run(modules[:place], images)
        return torch.cat([run(modules[place:], shared), self.second(shared)], 1)

    def forward(self, *views: Tensor, weight: float | None = None) -> tuple[Tensor, Tensor]:
        """With `weight`, return the logits of the first view mixed with the second; otherwise act as any classifier."""
        if weight is None:
            return super().forward(*views)
        place = last_block(self.backbone)
        modules = [one for _, one in links(self.backbone)]
        common = run(modules, views[0])
        reversed_ = self.second(run(modules[:place], views[1]))
        features = self.hidden(2 * torch.cat([weight * common, (1 - weight) * reversed_], 1))
        return self.centers(features), self.embed(features)


class Residual(Classifier):
    """ResLT: two or three branches on the last maps.

    In ResNets for small images, a branch is a batch norm; elsewhere a 1 x 1 convolution, batch norm and ReLU.
    """

    def __init__(
        self, backbone: nn.Module, num_features: int, num_classes: int, *, number: int, small: bool, **rest: Any
    ) -> None:
        super().__init__(backbone, num_features, num_classes, **rest)
        width = num_features // number
        self.branches = nn.ModuleList(
            nn.BatchNorm2d(width)
            if small
            else nn.Sequential(nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(number)
        )

    def pooled(self, images: Tensor) -> Tensor:
        last = maps(self.backbone, images)
        return torch.cat([branch(last).mean((2, 3)) for branch in self.branches], 1)


class Experts(Classifier):
    """RIDE: experts that share all but the last two stages. The first expert is the backbone itself."""

    def __init__(
        self, backbone: nn.Module, num_features: int, num_classes: int, *, others: Sequence[nn.Module], **rest: Any
    ) -> None:
        super().__init__(backbone, num_features, num_classes, **rest)
        place = last_stages(backbone)
        self.others = nn.ModuleList(nn.Sequential(*(m for _, m in links(other)[place:])) for other in others)

    def pooled(self, images: Tensor) -> Tensor:
        place = last_stages(self.backbone)
        modules = [one for _, one in links(self.backbone)]
        shared = run(modules[:place], images)
        return torch.cat([run(modules[place:], shared), *(other(shared) for other in self.others)], 1)


class Attentive(Classifier):
    """OLTR: modulated attention on the last feature maps F: the features are the mean of F + MA * SA.

    SA is a non-local block (embedded Gaussian), MA a softmax over positions, from a linear layer on all maps.
    """

    def __init__(self, backbone: nn.Module, num_features: int, num_classes: int, *, size: int, **rest: Any) -> None:
        super().__init__(backbone, num_features, num_classes, **rest)
        training = backbone.training
        with torch.no_grad():
            _, width, high, wide = maps(backbone.eval(), torch.zeros(1, 3, size, size)).shape
        backbone.train(training)
        half = max(width // 2, 1)
        self.theta, self.phi, self.g = (nn.Conv2d(width, half, 1) for _ in range(3))
        self.back = nn.Conv2d(half, width, 1, bias=False)
        self.spatial = nn.Linear(width * high * wide, high * wide)

    def pooled(self, images: Tensor) -> Tensor:
        last = maps(self.backbone, images)
        theta, phi, g = (layer(last).flatten(2) for layer in (self.theta, self.phi, self.g))  # (N, half, positions)
        attention = (theta.transpose(1, 2) @ phi).softmax(2)
        attended = self.back((g @ attention.transpose(1, 2)).unflatten(2, last.shape[2:]))
        where = self.spatial(last.flatten(1)).softmax(1).unflatten(1, last.shape[2:])
        pooled: Tensor = (last + where.unsqueeze(1) * attended).mean((2, 3))
        return pooled


BODIES: dict[str, type[Classifier]] = {
    "plain": Classifier,
    "prototyped": Prototyped,
    "bilateral": Bilateral,
    "residual": Residual,
    "experts": Experts,
    "attentive": Attentive,
}
WHOLE = ("bilateral", "residual", "experts", "attentive")  # bodies that use the modules of the backbone


def build_network(
    network: Network,
    backbone: nn.Module,
    num_features: int,
    num_classes: int,
    *,
    others: Sequence[nn.Module] = (),
    size: int = 0,
    small: bool = False,
    hidden: int = 0,
    dim: int = 128,
    projector: str = "gpaco",
) -> Classifier:
    """Return the classifier; `others` are the backbones of further experts, `size` is the image size."""
    if network.body in ("bilateral", "residual", "experts") and hidden:
        raise UserError("a network with branches has no layer before its classifier", "leave out model.hidden")
    wide = num_features * {"bilateral": 2, "residual": network.number, "experts": network.number}.get(network.body, 1)
    options: dict[str, Any] = {"dim": dim, "projector": projector, "hidden": hidden}
    extra: dict[str, dict[str, Any]] = {
        "residual": {"number": network.number, "small": small},
        "experts": {"others": others},
        "attentive": {"size": size},
    }
    options |= extra.get(network.body, {})
    own = num_features if network.head in ("shared", "experts") else hidden or wide
    centers = _head(network, own, num_classes)
    return BODIES[network.body](backbone, wide, num_classes, centers=centers, **options)


def _head(network: Network, wide: int, num_classes: int) -> nn.Module | None:
    """Return the class centers; None for a linear layer."""
    if network.head == "causal" and wide % network.number:
        raise UserError(
            f"{wide} features cannot be divided among {network.number} heads", "choose another number: method.heads"
        )
    made: dict[str, Any] = {
        "linear": lambda: None,
        "cosine": lambda: heads.Cosine(wide, num_classes, network.scale),
        "scaled": lambda: heads.Scaled(wide, num_classes),
        "tempered": lambda: heads.Tempered(wide, num_classes, network.scale),
        "means": lambda: heads.NearestMean(wide, num_classes),
        "causal": lambda: heads.CausalHead(wide, num_classes, network.number, network.scale, network.effect),
        "shared": lambda: heads.Shared(wide, num_classes, network.number, network.power),
        "experts": lambda: heads.ExpertCosines(wide, num_classes, network.number, network.scale),
        "meta": lambda: heads.MetaEmbedding(wide, num_classes, network.scale),
    }
    head: nn.Module | None = made[network.head]()
    return head
