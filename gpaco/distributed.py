"""Everything this package knows about processes. With one process each function is the identity."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def _many() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if _many() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if _many() else 1


def row_counts(x: Tensor) -> list[int]:
    """How many rows each process has in its own `x`."""
    if not _many():
        return [len(x)]
    counts = [torch.zeros(1, dtype=torch.int64, device=x.device) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor([len(x)], device=x.device))
    return torch.cat(counts).tolist()


def gather(x: Tensor, counts: list[int] | None = None) -> Tensor:
    """The rows of all processes in order of rank. Numbers of rows may differ; the gradient flows back.

    The gradient of a row is the sum of what all processes send to it, as if there were one process. `counts` is
    `row_counts(x)` for those who know it already.
    """
    if not _many():
        return x
    return _Gather.apply(x, counts or row_counts(x))  # type: ignore[no-any-return]


def total(x: Tensor) -> Tensor:
    """Sum of `x` over all processes, the same on each; the gradient flows back."""
    if not _many():
        return x
    return _Total.apply(x)  # type: ignore[no-any-return]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        # Collectives want equal shapes: fill up to the longest, then cut.
        filled = x.new_zeros(max(counts), *x.shape[1:])
        filled[: len(x)] = x
        parts = [torch.empty_like(filled) for _ in counts]
        dist.all_gather(parts, filled)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad.split(ctx.counts)[rank()], None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad
