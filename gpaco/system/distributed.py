"""Processes and devices: ranks, collectives, and the choice of device. In one process, collectives do nothing."""

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gpaco.errors import UserError
from gpaco.system.allocator import keep_freed_memory
from gpaco.system.words import one_line
from gpaco.system.work import Work

_alone = ContextVar("_alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """Work as if there were no other processes: each fits its own estimator."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def _many() -> bool:
    return not _alone.get() and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if _many() else 0


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if _many() else 1


def row_counts(x: Tensor) -> list[int]:
    """Return the number of rows of `x` in each process."""
    if not _many():
        return [len(x)]
    counts = [torch.zeros(1, dtype=torch.int64, device=x.device) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor([len(x)], device=x.device))
    return torch.cat(counts).tolist()


def gather(x: Tensor, counts: list[int] | None = None) -> Tensor:
    """Return the rows of all processes in order of rank, differentiably. Processes may have different numbers of rows.

    The gradient of a row is the sum over all processes, as if there were only one. `counts` is `row_counts(x)`, if
    already known.
    """
    if not _many():
        return x
    return _Gather.apply(x, counts or row_counts(x))  # type: ignore[no-any-return]


def total(x: Tensor) -> Tensor:
    """Return the sum of `x` over all processes, differentiably."""
    if not _many():
        return x
    return _Total.apply(x)  # type: ignore[no-any-return]


def own_share(n: int) -> range:
    """Return which of n items this process works on."""
    return range(rank(), n, world_size())


def rounds(n: int, size: int) -> list[range]:
    """Return which of n items this process works on, in rounds of at most `size`, equally many in all processes."""
    step = size * world_size()
    return [range(start + rank(), min(start + step, n), world_size()) for start in range(0, n, step)]


def shared_work() -> Work:
    """Return how processes share the items of some work."""
    return Work(rounds, collect_in_order, first=rank() == 0, processes=world_size())


def in_order(rows: Tensor, n: int, block: int = 256) -> Tensor:
    """Return the rows of all n items in order, on the CPU, from the rows of `own_share(n)` in each process.

    They are gathered in blocks of this many rows, so that no device has to hold all of them.
    """
    if not _many():
        return rows
    world = world_size()
    result = torch.empty(n, *rows.shape[1:], dtype=rows.dtype)
    for start in range(0, math.ceil(n / world), block):
        own = rows[start : start + block].to(_place())
        counts = row_counts(own)
        for first, part in enumerate(gather(own, counts).cpu().split(counts)):
            result[start * world + first :: world][: len(part)] = part
    return result


def gather_json(value: Any) -> list[Any]:
    """Return the values of all processes in order of rank. They must be ready for JSON, and should be small."""
    if not _many():
        return [value]
    content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(_place())
    counts = row_counts(content)
    return [json.loads(part.cpu().numpy().tobytes()) for part in gather(content, counts).split(counts)]


def collect(items: Sequence[Any]) -> list[Any]:
    """Return the items of all processes in order of rank, after a round trip through JSON."""
    return [item for part in gather_json(list(items)) for item in part]


def collect_in_order(items: Sequence[Any]) -> list[Any]:
    """Return the items of all processes: the first of each, then the second of each, and so on; see `collect`."""
    numbered = collect([(k, rank(), item) for k, item in enumerate(items)])
    return [item for _, _, item in sorted(numbered, key=lambda one: (one[0], one[1]))]


def sum_counts(counts: Tensor) -> Tensor:
    """Return the sum over all processes, without a gradient, for a tensor on any device."""
    return _reduced(counts, "SUM")


def maximum(x: Tensor) -> Tensor:
    """Return the elementwise maximum over all processes, without a gradient, for a tensor on any device."""
    return _reduced(x, "MAX")


def _reduced(x: Tensor, operation: str) -> Tensor:
    if not _many():
        return x
    result = x.detach().to(_place(), copy=True)
    dist.all_reduce(result, getattr(dist.ReduceOp, operation))
    return result.to(x.device)


def _place() -> str:
    """Return the device where the backend expects tensors."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def share_statistics(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model with batch norm synchronized over all processes, which only CUDA supports."""
    if _many() and dist.get_backend() == "nccl":
        return torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-any-return]
    return model


def agree(*values: int) -> list[int]:
    """Return the maximum of each value over all processes."""
    return maximum(torch.tensor(values)).tolist()


def share_buffers(module: torch.nn.Module) -> None:
    """Copy the buffers of process 0, such as batch-norm statistics, to every process."""
    if _many():
        for buffer in module.buffers():
            dist.broadcast(buffer, 0)


def from_first(x: Tensor) -> Tensor:
    """Return the tensor of process 0; it has the same shape in every process."""
    if _many():
        dist.broadcast(x, 0)
    return x


def barrier() -> None:
    """Wait for all processes."""
    agree(0)


def started() -> int:
    """Return the number of processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def start(device: torch.device, timeout_minutes: float = 10.0) -> None:
    """Join the process group if torchrun started several processes."""
    if started() > 1 and not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(minutes=timeout_minutes))


def stop() -> None:
    """Leave the process group.

    A thread of gloo frees the tensors of the last collective. If the interpreter ends first, that thread aborts the
    process, after everything is done and saved. So give it time.
    """
    if dist.is_available() and dist.is_initialized():
        time.sleep(0.05)
        dist.destroy_process_group()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        # all_gather needs equal shapes: pad to the longest, then trim.
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


def choose_device(name: str | None = None) -> torch.device:
    """Return the named device, ready for use; by default CUDA if available, else the CPU. Each process has its own GPU.

    Apple's mps is never the default: it is untested.
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"  # as torchrun numbers processes
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"there is no device {name!r}", "devices are cpu, cuda (cuda:1 and so on) and mps") from error
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {name!r} is not available here: {one_line(error)}", "--device cpu") from error
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if device.type == "cpu":
        keep_freed_memory()
    return device
