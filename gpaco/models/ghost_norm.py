"""Ghost batch norm: batch statistics over small groups of rows, as on one GPU of several."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.errors import UserError


def ghost_batch(model: nn.Module, size: int) -> None:
    """Make every batch norm in `model` see `size` rows at a time, as on one GPU of several.

    Parameters, buffers and the keys of the state dict do not change.
    """
    if size < 2:
        raise UserError(
            f"ghost_batch must be at least 2, got {size}", "set it to 2 or more, or to 0 for the whole batch"
        )
    for path, parent in list(model.named_modules()):
        if path.partition(".")[0] == "prototypes":  # of BCL: its rows are classes, which all GPUs see together
            continue
        for name, child in list(parent.named_children()):
            if isinstance(child, (nn.BatchNorm1d, nn.BatchNorm2d)):
                setattr(parent, name, GhostBatchNorm(child, size))


class GhostBatchNorm(nn.BatchNorm2d):
    """`norm`, but in training each group of `size` consecutive rows is normalized separately.

    A last group of one row joins the previous one. Each batch updates the running statistics once, with the average
    over groups of their means and (unbiased) variances. (A multi-GPU run keeps the statistics of its first device; this
    is the average over its devices.) With one group, and in evaluation, this is plain batch norm.
    """

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d, size: int) -> None:
        plain = type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d)
        if not plain and not (hasattr(norm, "drop") and hasattr(norm, "act")):
            raise UserError(
                f"ghost_batch does not support {type(norm).__name__}", "leave it out, or choose another model"
            )
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        self.size = size
        # The same tensors, not copies: an optimizer may hold them already.
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked
        self.drop: nn.Module = getattr(norm, "drop", nn.Identity())  # timm's BatchNormAct2d includes both
        self.act: nn.Module = getattr(norm, "act", nn.Identity())
        self.training = norm.training

    def forward(self, x: Tensor) -> Tensor:
        groups = _group_sizes(len(x), self.size) if self.training else []  # len(x) would be a constant in an export
        x = self._by_group(x, groups) if len(groups) > 1 else super().forward(x)
        normalized: Tensor = self.act(self.drop(x))
        return normalized

    def _by_group(self, x: Tensor, groups: list[int]) -> Tensor:
        parts = x.split(groups)
        running_mean, running_var = cast(Tensor, self.running_mean), cast(Tensor, self.running_var)
        # With momentum 1, batch norm writes the statistics of its rows to the given buffers.
        means = running_mean.new_zeros(len(groups), self.num_features)
        variances = torch.zeros_like(means)
        normalized = [
            F.batch_norm(part, mean, variance, self.weight, self.bias, True, 1, self.eps)
            for part, mean, variance in zip(parts, means, variances, strict=True)
        ]
        cast(Tensor, self.num_batches_tracked).add_(1)
        running_mean.lerp_(means.mean(0), self.momentum or 0)
        running_var.lerp_(variances.mean(0), self.momentum or 0)
        return torch.cat(normalized)

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept rows and maps: the replaced layer may take either."""


def _group_sizes(rows: int, size: int) -> list[int]:
    """Return the number of rows in each group: `size`, and the rest in the last one, but never a single row.

    >>> _group_sizes(10, 4), _group_sizes(9, 4), _group_sizes(3, 4)
    ([4, 4, 2], [4, 5], [3])
    """
    full, left = divmod(rows, size)
    if full == 0 or left == 0:
        return [size] * full or [rows]
    return [size] * full + [left] if left > 1 else [size] * (full - 1) + [size + 1]
