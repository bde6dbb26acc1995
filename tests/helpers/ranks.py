"""Run a function in several gloo processes and return their results."""

import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from helpers import forked

Results = dict[str, Tensor]


def run_ranks(world: int, function: Callable[[], Results]) -> list[Results]:
    """Return what `function`, which must be at the top of its module, returns in each of `world` processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "path.json").write_text(json.dumps(sys.path))
        (folder / "function.pickle").write_bytes(pickle.dumps(function))
        errors = [(folder / f"{rank}.txt").open("w+") for rank in range(world)]
        processes = [
            forked.python(__file__, rank, world, folder, env=forked.ENVIRONMENT, stdout=file, stderr=subprocess.STDOUT)
            for rank, file in enumerate(errors)
        ]
        try:
            while any(process.poll() is None for process in processes):
                if any(process.poll() for process in processes):  # the others would wait for the one that failed
                    break
                time.sleep(0.01)
            for rank, process in enumerate(processes):
                said = (folder / f"{rank}.txt").read_text()
                assert not process.poll(), f"rank {rank}: exit {process.returncode}\n{said}"
        finally:
            for process, file in zip(processes, errors, strict=True):
                process.kill()
                process.wait()
                file.close()
        files = [folder / f"{rank}.npz" for rank in range(world)]
        return [{name: torch.from_numpy(value) for name, value in np.load(file).items()} for file in files]


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    sys.path = json.loads((folder / "path.json").read_text())
    function = pickle.loads((folder / "function.pickle").read_bytes())  # noqa: S301
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world)
    results = function()
    np.savez(folder / f"{rank}.npz", **{name: value.detach().numpy() for name, value in results.items()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
