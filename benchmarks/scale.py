"""How a step of the loss grows with classes, memory, batch and processes: time, memory, bytes moved. Ten minutes.

    python benchmarks/scale.py [--out benchmarks/results] [--quick]

One forward and backward pass of `GPaCoLoss` and of the class centers (a linear layer on 512 features), float32, one
thread. Each measurement is a process of its own; seconds are medians. Processes are gloo ranks on this machine: what
they move through collectives in one step is counted, per rank, the gradients of the network left out. Writes scale.csv,
scale.svg and the tables of docs/scale.md; exponents are the growth between the two largest sizes.
"""

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from loss import GIVE_BACK, in_a_new_process, rise
from table import write, write_between

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
DIM, FEATURES = 128, 512
BASE = {"classes": 1000, "memory": 8192, "batch": 256}
SWEEPS = {
    "classes": (10, 100, 1_000, 10_000, 100_000),
    "memory": (0, 1_024, 8_192, 65_536, 262_144),
    "batch": (32, 128, 512, 2_048, 4_096),
}


def step_of(classes: int, memory: int, batch: int, contrast: str = "local") -> Any:
    """Return a function that does one pass, with a memory that is full."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    import gpaco

    torch.manual_seed(0)
    centers = nn.Linear(FEATURES, classes)
    counts = torch.arange(classes, 0, -1)
    criterion = gpaco.GPaCoLoss(classes, memory=memory, dim=DIM, class_counts=counts, contrast=contrast)
    for _ in range(math.ceil(memory / 65_536)):
        rows = min(memory, 65_536)
        criterion.memory.push(F.normalize(torch.randn(rows, DIM), dim=1), torch.randint(classes, (rows,)))
    features = torch.randn(2 * batch, FEATURES)
    raw = torch.randn(2 * batch, DIM, requires_grad=True)
    labels = torch.randint(classes, (batch,)).repeat(2)

    def step() -> None:
        centers.zero_grad()
        raw.grad = None
        criterion(centers(features), F.normalize(raw, dim=1), labels).backward()

    return step


def measure(what: str, sizes: dict[str, int]) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    step = step_of(sizes["classes"], sizes["memory"], sizes["batch"])
    if what == "memory":
        step_of(3, 32, 8)()  # libraries are loaded and their buffers made
        return {"MB": rise(step)}
    step()
    seconds: list[float] = []
    until = time.perf_counter() + 4
    while len(seconds) < 3 or (time.perf_counter() < until and len(seconds) < 50):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return {"seconds": statistics.median(seconds)}


def rank_main(contrast: str, batch: int) -> None:
    """Count the bytes that one rank sends into collectives in a step, time it, and measure its memory."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    moved = 0
    for name in ("all_gather", "all_reduce"):
        plain = getattr(dist, name)

        def counted(*arguments: Any, plain: Any = plain, name: str = name) -> Any:
            nonlocal moved
            tensor = arguments[1] if name == "all_gather" else arguments[0]
            moved += tensor.numel() * tensor.element_size()
            return plain(*arguments)

        setattr(dist, name, counted)
    step = step_of(BASE["classes"], BASE["memory"], batch, contrast)
    step()
    moved = 0
    start = time.perf_counter()
    for _ in range(5):
        step()
    seconds, sent = (time.perf_counter() - start) / 5, moved / 5
    megabytes = rise(step)
    if dist.get_rank() == 0:
        print(json.dumps({"bytes": sent, "seconds": seconds, "MB": megabytes}))
    dist.destroy_process_group()


def ranks(number: int, contrast: str) -> dict[str, float]:
    """Start the processes twice: memory is measured where glibc gives freed blocks back, which takes time."""
    frugal = started(number, contrast, GIVE_BACK)
    return started(number, contrast, {}) | {"MB": frugal["MB"]}


def started(number: int, contrast: str, environment: dict[str, str]) -> dict[str, float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": number, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__, "--rank", contrast, str(BASE["batch"] // number)]
    processes = [
        subprocess.Popen(
            command,
            env=os.environ | environment | {name: str(value) for name, value in (shared | {"RANK": rank}).items()},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(number)
    ]
    printed = [process.communicate()[0] for process in processes]
    result: dict[str, float] = json.loads(printed[0].splitlines()[-1])
    return result


def exponent(points: list[tuple[float, float]]) -> float:
    """Return the slope between the last two points in a log-log plot."""
    (x1, y1), (x2, y2) = points[-2:]
    return math.log(y2 / y1) / math.log(x2 / x1)


def table(rows: list[dict[str, Any]]) -> str:
    """The tables of docs/scale.md."""
    lines: list[str] = []
    for name in SWEEPS:
        mine = [row for row in rows if row["sweep"] == name]
        time, memory = (exponent([(row[name], row[what]) for row in mine]) for what in ("seconds", "MB"))
        lines += [f"| {name} | " + " | ".join(f"{row[name]:,}" for row in mine) + " | exponent |"]
        lines += ["|---" * (len(mine) + 2) + "|"]
        lines += ["| milliseconds | " + " | ".join(f"{1000 * row['seconds']:.1f}" for row in mine) + f" | {time:.2f} |"]
        lines += ["| MB | " + " | ".join(f"{row['MB']:.0f}" for row in mine) + f" | {memory:.2f} |", ""]
    lines += [
        "| ranks | contrast | bytes that a rank sends in a step | milliseconds | MB per rank |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if row["sweep"] == "ranks":
            numbers = f"{row['bytes']:,.0f} | {1000 * row['seconds']:.0f} | {row['MB']:.0f}"
            lines += [f"| {row['ranks']} | {row['contrast']} | {numbers} |"]
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "scale"
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots(2, len(SWEEPS), sharex="col")
    for k, name in enumerate(SWEEPS):
        mine = [row for row in rows if row["sweep"] == name]
        for axis, what in zip(axes[:, k], ("seconds", "MB"), strict=True):
            axis.plot([max(row[name], 1) for row in mine], [row[what] for row in mine], "o-")
            axis.set(xscale="log", yscale="log", ylabel=what if k == 0 else "")
            axis.grid(alpha=0.3)
        axes[1, k].set_xlabel(name)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="try the script: the smaller half of the sizes, no files")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        print(json.dumps(measure(*json.loads(arguments.task))))
        return
    if arguments.rank:
        rank_main(arguments.rank[0], int(arguments.rank[1]))
        return
    rows: list[dict[str, Any]] = []
    for name, values in SWEEPS.items():
        for value in values[:3] if arguments.quick else values:
            sizes = BASE | {name: value}
            row: dict[str, Any] = {"sweep": name, **sizes, "ranks": 1, "contrast": "local", "bytes": 0}
            row |= in_a_new_process("time", sizes, script=__file__) | in_a_new_process("memory", sizes, script=__file__)
            rows.append(row)
            print(f"{name} {value:>8,}: {row['seconds']:.4f} s, {row['MB']:.0f} MB", flush=True)
    for number in (1, 2, 4):
        for contrast in ("local", "global"):
            found = ranks(number, contrast)
            row = {"sweep": "ranks", **BASE, "ranks": number, "contrast": contrast, **found}
            rows.append(row)
            print(f"{number} ranks, {contrast}: {found['bytes']:,.0f} bytes a step and rank", flush=True)
    if not arguments.quick:
        write(arguments.out / "scale.csv", rows)
        plot([row for row in rows if row["sweep"] != "ranks"], arguments.out / "scale.svg")
        write_between(PAGE, "<!-- table of benchmarks/scale.py -->", "<!-- end of the table -->", table(rows))


if __name__ == "__main__":
    main()
