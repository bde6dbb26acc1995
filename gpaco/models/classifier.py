"""The network that every method trains, and what may be done to it: momentum copy, ghost batch norm, freezing."""

from copy import deepcopy
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.errors import UserError, nearest
from gpaco.losses.checks import at_least_float32, check_choice, check_number
from gpaco.models.lora import adapt
from gpaco.recipes.settings import Train

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)


class Classifier(nn.Module):
    """Backbone, class centers and projector: images -> logits and embeddings.

    `model(view1, view2)` gives logits (2B, C) and embeddings (2B, D) of unit length, view 1's rows first. The views go
    through the network one after another, so batch norm sees one view at a time, as in the released code. Any number
    of views works; `model(images)` is one view, in training and in evaluation. `classify` skips the projector, and
    `gpaco.load` gives a module that does only that.

    Args:
        backbone: images -> features (N, F), after pooling; `gpaco.models.backbones.build` has some.
        num_features: F.
        num_classes: C; the centers are a linear layer with bias, on the features as they are.
        dim: D, length of an embedding.
        projector: "gpaco": three linear layers with ReLU between; "paco": two, batch norm and ReLU after the first;
            "two-layer": two with ReLU between, the paper's; "mae": as "gpaco" with GELU; "none": embeddings are not
            computed, and come as (2B, 0).
        hidden: width of a layer with ReLU between the backbone and both heads; 0 for none.

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
        self.centers = nn.Linear(hidden or num_features, num_classes)
        self.projector = _projector(projector, hidden or num_features, dim)
        self.backbone_fixed = False  # set by freeze: the backbone then stays in evaluation mode
        self.fixed_norms: list[nn.Module] = []  # the same for some of its layers

    def forward(self, *views: Tensor) -> tuple[Tensor, Tensor]:
        if not views:
            raise ValueError("pass at least one batch of images: model(images) or model(view1, view2)")
        logits, embeddings = [], []
        for view in views:
            features = self.features(view)
            logits.append(self.centers(features))
            embeddings.append(self.embed(features))
        return torch.cat(logits), torch.cat(embeddings)

    def classify(self, images: Tensor) -> Tensor:
        """Logits (N, C), without embeddings."""
        logits: Tensor = self.centers(self.features(images))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """What the centers and the projector see of images: (N, F), or (N, hidden)."""
        features = self.backbone(images)
        expected = (images.shape[0], self.num_features)  # len() would fix the number in an exported graph
        if not isinstance(features, Tensor) or features.shape != expected:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ValueError(
                f"the backbone must give features of shape {expected}, got {shape}; pool them, or change num_features"
            )
        result: Tensor = self.hidden(features)
        return result

    def embed(self, features: Tensor) -> Tensor:
        """Embeddings (N, D) of unit length from features; (N, 0) without a projector."""
        if self.projector is None:
            return features.new_zeros(len(features), 0)
        # Rows of half precision would be off unit length by a few thousandths.
        return F.normalize(at_least_float32(self.projector(features)), dim=1)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.backbone_fixed:
            self.backbone.eval()
        for norm in self.fixed_norms:
            norm.eval()
        return self


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
    """A copy of `model` that gets no gradient: PaCo's key network. Move it along with `update_momentum`.

    It is meant to stay in training mode: its batch norm uses the keys' own statistics and keeps its own running ones.
    The released code also shuffles keys over GPUs before batch norm, so that a key does not share statistics with its
    query; on one device that changes nothing, and it is left out.
    """
    return deepcopy(model).requires_grad_(False)


@torch.no_grad()
def update_momentum(copy: nn.Module, model: nn.Module, momentum: float = 0.999) -> None:
    """Set each parameter of `copy` to momentum * copy + (1 - momentum) * model. Buffers stay as they are."""
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum must be 0 to 1, got {momentum}")
    for kept, new in zip(copy.parameters(), model.parameters(), strict=True):
        kept.mul_(momentum).add_(new, alpha=1 - momentum)


def ghost_batch(model: nn.Module, size: int) -> int:
    """Let every batch norm in `model` see `size` rows at a time, as one GPU of several does; the number of them.

    Parameters, buffers and the keys of the state dict stay what they were.
    """
    if size < 2:
        raise UserError(f"ghost_batch must be at least 2, got {size}", "batch norm needs two images to compare")
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, (nn.BatchNorm1d, nn.BatchNorm2d)):
                setattr(parent, name, GhostBatchNorm(child, size))
                replaced += 1
    return replaced


class GhostBatchNorm(nn.BatchNorm2d):
    """`norm`, but in training consecutive groups of `size` rows are normalized each by itself.

    A last group of one row joins the one before it. Each batch moves the running statistics once, towards the mean over
    groups of the groups' means and (unbiased) variances: what the devices of a multi-GPU run see on average, where the
    run itself keeps those of its first device. One group is plain batch norm, and so is evaluation.
    """

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d, size: int) -> None:
        plain = type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d)
        if not plain and not (hasattr(norm, "drop") and hasattr(norm, "act")):
            raise UserError(
                f"ghost_batch does not know how {type(norm).__name__} works", "leave it out, or choose another model"
            )
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        self.size = size
        # The same tensors, not copies: an optimizer may hold them already.
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked
        self.drop: nn.Module = getattr(norm, "drop", nn.Identity())  # timm has one with dropout and activation inside
        self.act: nn.Module = getattr(norm, "act", nn.Identity())
        self.training = norm.training

    def forward(self, x: Tensor) -> Tensor:
        groups = _group_sizes(len(x), self.size) if self.training else [len(x)]
        x = super().forward(x) if len(groups) == 1 else self._by_group(x, groups)
        normalized: Tensor = self.act(self.drop(x))
        return normalized

    def _by_group(self, x: Tensor, groups: list[int]) -> Tensor:
        parts = x.split(groups)
        if self.running_mean is None or self.running_var is None:
            return torch.cat(
                [F.batch_norm(part, None, None, self.weight, self.bias, True, 0, self.eps) for part in parts]
            )
        # With momentum 1 batch norm writes the statistics of its rows into the buffers that it is given.
        means = self.running_mean.new_zeros(len(groups), self.num_features)
        variances = torch.zeros_like(means)
        normalized = [
            F.batch_norm(part, mean, variance, self.weight, self.bias, True, 1, self.eps)
            for part, mean, variance in zip(parts, means, variances, strict=True)
        ]
        momentum = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            momentum = 1 / float(self.num_batches_tracked) if momentum is None else momentum
        self.running_mean.lerp_(means.mean(0), momentum or 0)
        self.running_var.lerp_(variances.mean(0), momentum or 0)
        return torch.cat(normalized)

    def _check_input_dim(self, input: Tensor) -> None:
        """Rows or maps, whatever the layer was for that this one replaces."""


def _group_sizes(rows: int, size: int) -> list[int]:
    """Rows in each group: `size`, and what is left over, but not one row alone.

    >>> _group_sizes(10, 4), _group_sizes(9, 4), _group_sizes(3, 4)
    ([4, 4, 2], [4, 5], [3])
    """
    full, left = divmod(rows, size)
    if full == 0 or left == 0:
        return [size] * full or [rows]
    return [size] * full + [left] if left > 1 else [size] * (full - 1) + [size + 1]


def freeze(model: Classifier, part: str, *, lora_rank: int = Train.lora_rank) -> int:
    """Choose what is trained; the number of parameters that are.

    Centers and projector are always trained. Of the backbone,

        "all"         everything;
        "last-block"  the last block of the last stage, what comes after it, and scale and shift of every batch norm,
                      whose statistics go on moving: Places-LT as released;
        "head"        nothing. It stays in evaluation mode, whatever `model.train()` says: stored statistics in batch
                      norm, no dropout, so that an image has the same features in each epoch;
        "lora"        changes of low rank to its linear layers, which start at nothing (lora.py). Its norms do not
                      train, statistics of batch norm included; dropout and drop path work.
    """
    parts = ("all", "last-block", "head", "lora")
    if part not in parts:
        raise UserError(f"there is no part {part!r} to train{nearest(part, parts)}", f"take one of {', '.join(parts)}")
    chosen: list[nn.Module] | list[nn.Parameter] = []
    if part == "last-block":
        chosen = _last_block(model.backbone)
    elif part == "lora":
        chosen = adapt(model.backbone, lora_rank)
    model.requires_grad_(True)
    model.backbone.requires_grad_(part == "all")
    for one in chosen:
        one.requires_grad_(True)
    model.backbone_fixed = part == "head"
    model.fixed_norms = _batch_norms(model.backbone) if part == "lora" else []
    model.train(model.training)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _batch_norms(backbone: nn.Module) -> list[nn.Module]:
    return [module for module in backbone.modules() if isinstance(module, _BATCH_NORMS)]


def _last_block(backbone: nn.Module) -> list[nn.Module]:
    """The last block of the last stage, the modules after the stages, and all batch norms."""
    children = dict(backbone.named_children())
    # ResNets (four stages, ours three), ViT and EfficientNet, ConvNeXt, Swin
    stages = next((name for name in ("layer4", "layer3", "blocks", "stages", "layers") if name in children), "")
    block = children.get(stages, nn.Identity())
    while isinstance(inner := getattr(block, "blocks", block), (nn.Sequential, nn.ModuleList)):
        block = inner[-1]
    if not list(block.children()):  # not found, or a single layer
        raise UserError(
            f"the last block of {type(backbone).__name__} is not known",
            "train the head or all of it (--train head, --train all), or choose a ResNet, ViT, Swin or EfficientNet",
        )
    after = list(children)[list(children).index(stages) + 1 :]
    return [block, *(children[name] for name in after), *_batch_norms(backbone)]
