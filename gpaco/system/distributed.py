"""Everything this package knows about processes. With one process each function is the identity."""

import os
from datetime import timedelta
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


def mine(n: int) -> range:
    """Of n things that the processes share, those that this one does."""
    return range(rank(), n, world_size())


def in_order(rows: Tensor, n: int) -> Tensor:
    """The rows of all n things in their order, from the rows of `mine(n)` in each process."""
    if not _many():
        return rows
    world = world_size()
    order = torch.cat([torch.arange(n)[first::world] for first in range(world)])
    gathered = gather(rows)
    result = torch.empty_like(gathered)
    result[order] = gathered
    return result


def sum_counts(counts: Tensor) -> Tensor:
    """Sum of numbers over all processes, the same on each, wherever they are; without a gradient."""
    if not _many():
        return counts
    summed = counts.to(_device())
    dist.all_reduce(summed)
    return summed.to(counts.device)


def share_statistics(model: torch.nn.Module) -> torch.nn.Module:
    """The model with batch norm over the images of all processes, where their devices can: that is CUDA's alone."""
    if _many() and dist.get_backend() == "nccl":
        return torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-any-return]
    return model


def maximum(values: Tensor) -> Tensor:
    """The largest of each value over all processes, on the device."""
    if _many():
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values


def agree(*values: int) -> list[int]:
    """The largest of each value over all processes: what one of them has seen, all of them know."""
    if not _many():
        return list(values)
    largest = torch.tensor(values, device=_device())
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.tolist()


def share_buffers(module: torch.nn.Module) -> None:
    """Give every process the buffers of process 0, such as its batch-norm statistics."""
    if _many():
        for buffer in module.buffers():
            dist.broadcast(buffer, 0)


def barrier() -> None:
    """Wait for all processes."""
    if _many():
        agree(0)


def start(device: torch.device, timeout_minutes: float = 10.0) -> None:
    """Join the other processes if torchrun has started several."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(minutes=timeout_minutes))


def stop() -> None:
    """Leave the other processes."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _device() -> torch.device:
    nccl = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


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
