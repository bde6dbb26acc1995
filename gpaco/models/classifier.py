"""The network that every method trains, and its momentum copy."""

from copy import deepcopy
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.losses.checks import at_least_float32, check_choice, check_number


class Classifier(nn.Module):
    """Backbone, class centers and projector: images -> logits and embeddings.

    `model(view1, view2)` returns logits (2B, C) and embeddings (2B, D) of unit length, with the rows of view 1 first.
    The views go through the network one after another, so batch norm sees one view at a time, as in the released code.
    Any number of views works. `classify` skips the projector; `gpaco.load` returns a module that does only that.

    Args:
        backbone: images -> features (N, F), after pooling, for example from `gpaco.models.backbones.build`.
        num_features: F.
        num_classes: C; the centers are a linear layer with bias on the features.
        dim: D, length of an embedding.
        projector: "gpaco": three linear layers with ReLU between; "paco": two, batch norm and ReLU after the first;
            "two-layer": two with ReLU between, as in the paper; "mae": as "gpaco" with GELU; "none": embeddings are
            not computed and have shape (2B, 0).
        hidden: width of a linear layer with ReLU between the backbone and both heads; 0 for no layer.
        centers: a head to use instead of a linear layer (models/heads.py).

    >>> model = Classifier(nn.Flatten(), num_features=12, num_classes=5, dim=4)
    >>> logits, embeddings = model(torch.randn(3, 3, 2, 2), torch.randn(3, 3, 2, 2))
    >>> logits.shape, embeddings.shape
    (torch.Size([6, 5]), torch.Size([6, 4]))
    """

    def __init__(
        self,
        backbone: nn.Module,
        num_features: int,
        num_classes: int,
        *,
        dim: int = 128,
        projector: str = "gpaco",
        hidden: int = 0,
        centers: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_number(num_features, "num_features", 1)
        check_number(num_classes, "num_classes", 1)
        check_number(dim, "dim", 1)
        check_number(hidden, "hidden", 0)
        check_choice(projector, "projector", ("gpaco", "paco", "two-layer", "mae", "none"))
        self.backbone = backbone
        self.num_features = num_features
        self.hidden = nn.Sequential(nn.Linear(num_features, hidden), nn.ReLU()) if hidden else nn.Identity()
        self.centers: Any = centers or nn.Linear(hidden or num_features, num_classes)
        self.projector = _projector(projector, hidden or num_features, dim)
        self.backbone_fixed = False  # set by `freeze`: keep the backbone in evaluation mode
        self.fixed_norms: list[nn.Module] = []  # layers to keep in evaluation mode
        self.shifted_norms: list[nn.Module] = []  # exceptions, which follow the mode of the model

    def forward(self, *views: Tensor) -> tuple[Tensor, Tensor]:
        if not views:
            raise ValueError("pass at least one batch of images: model(images) or model(view1, view2)")
        logits, embeddings = [], []
        for view in views:
            features = self.features(view)
            logits.append(self.outputs(features))
            embeddings.append(self.embed(features))
        return torch.cat(logits), torch.cat(embeddings)

    def outputs(self, features: Tensor) -> Tensor:
        """Return what a loss sees: logits (N, C), or (N, K, C) for a head with several parts."""
        shown: Tensor = getattr(self.centers, "parts", self.centers)(features)
        return shown

    def classify(self, images: Tensor) -> Tensor:
        """Return logits (N, C), without embeddings."""
        logits: Tensor = self.centers(self.features(images))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """Return the input of the centers and the projector: (N, F), or (N, hidden)."""
        features = self.pooled(images)
        expected = (images.shape[0], self.num_features)  # len() would fix the batch size in an exported graph
        if not isinstance(features, Tensor) or features.shape != expected:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ValueError(
                f"the backbone must return features of shape {expected}, got {shape}; pool them, or change num_features"
            )
        result: Tensor = self.hidden(features)
        return result

    def pooled(self, images: Tensor) -> Tensor:
        """Return the features of the backbone, (N, F)."""
        features: Tensor = self.backbone(images)
        return features

    def embed(self, features: Tensor) -> Tensor:
        """Return embeddings (N, D) of unit length from features; (N, 0) without a projector."""
        if self.projector is None:
            return features.new_zeros(len(features), 0)
        # In half precision, the length would be off by a few thousandths.
        return F.normalize(at_least_float32(self.projector(features)), dim=1)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.backbone_fixed:
            self.backbone.eval()
        for norm in self.fixed_norms:
            norm.eval()
        for norm in self.shifted_norms:
            norm.train(mode)
        return self

    def shift_norms(self) -> None:
        """Let the batch norms of a fixed backbone use and update the statistics of training batches."""
        self.shifted_norms = batch_norms(self.backbone)


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """Return the batch norms of a network."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
    return [module for module in model.modules() if isinstance(module, kinds)]


def _projector(kind: str, wide: int, dim: int) -> nn.Sequential | None:
    if kind == "none":
        return None
    if kind == "paco":
        return nn.Sequential(nn.Linear(wide, wide), nn.BatchNorm1d(wide), nn.ReLU(), nn.Linear(wide, dim))
    if kind == "two-layer":
        return nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, dim))
    between = nn.GELU if kind == "mae" else nn.ReLU
    return nn.Sequential(nn.Linear(wide, wide), between(), nn.Linear(wide, wide), between(), nn.Linear(wide, dim))


def momentum_copy(model: Classifier) -> Classifier:
    """Return a copy of `model` without gradients, PaCo's key network, to be updated with `update_momentum`.

    Keep it in training mode: its batch norm uses the statistics of the batch of keys (`momentum_keys`), and has its own
    running statistics.
    """
    return deepcopy(model).requires_grad_(False)


@torch.no_grad()
def update_momentum(copy: nn.Module, model: nn.Module, momentum: float = 0.999) -> None:
    """Set each parameter of `copy` to momentum * copy + (1 - momentum) * model. Buffers do not change."""
    for kept, new in zip(copy.parameters(), model.parameters(), strict=True):
        kept.lerp_(new, 1 - momentum)  # exactly equal parameters stay equal
