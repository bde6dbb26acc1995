"""Run a function in several gloo processes and bring their results home."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor

Results = dict[str, Tensor]


def run_ranks(world: int, function: Callable[[], Results]) -> list[Results]:
    """What `function` returns in each of `world` processes."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_worker, (world, folder, function), nprocs=world)
        files = [Path(folder) / f"{rank}.npz" for rank in range(world)]
        return [{name: torch.from_numpy(value) for name, value in np.load(file).items()} for file in files]


def _worker(rank: int, world: int, folder: str, function: Callable[[], Results]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world)
    results = function()
    np.savez(f"{folder}/{rank}.npz", **{name: value.detach().numpy() for name, value in results.items()})
    dist.destroy_process_group()
