"""Time and peak memory of the loss, forward and backward, beside other implementations. About ten minutes on two cores.

    python benchmarks/loss.py [--out benchmarks/results] [--quick]

Contestants, all float32, all with the same numbers:
    released    the formula of the released code, transcribed from its description: one matrix of scores, one of
                weights, one of what takes part, all (N, C + N + M)
    gpaco       `gpaco.gpaco_loss`
    pml         pytorch-metric-learning's SupConLoss with its CrossBatchMemory: less work (no centers), for comparison
    products    the limit of a loss that recomputes: the similarities twice, their product with the references, and the
                transposed product for the batch, nothing else

Each measurement is a process of its own. Times are medians of repeated runs, taken in turn within one process per
shape, so that a noisy machine affects all alike. Memory is the rise of the peak resident size during one forward and
backward pass, the gradients of the inputs included. Writes loss.csv (one row per measurement, with the machine) and
loss.svg, and prints the table of docs/speed.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from table import write

SHAPES = [(256, 8192, 1000), (2048, 8192, 1000), (8192, 8192, 150), (8192, 65536, 150)]
GROWTH = [(n, n, 150) for n in (1024, 2048, 4096, 8192, 16384)]
CONTESTANTS = ("released", "gpaco", "pml", "products")
DIM = 128
# The environment of a process whose memory is measured: else glibc keeps freed blocks, and its size says little.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
LIMIT = 6e9  # bytes; what would need more is not run


def contestant(name: str, anchors: int, references: int, classes: int) -> Callable[[], None]:
    """A function that does one forward and backward pass."""
    import torch
    from torch import Tensor
    from torch.nn import functional as F

    from gpaco import gpaco_loss

    torch.manual_seed(0)
    embeddings = F.normalize(torch.randn(anchors, DIM), dim=1).requires_grad_()
    memory = F.normalize(torch.randn(references, DIM), dim=1)
    logits = torch.randn(anchors, classes, requires_grad=True)
    labels, memory_labels = torch.randint(classes, (anchors,)), torch.randint(classes, (references,))
    alpha, temperature = 0.05, 0.2

    def released() -> Tensor:
        everyone, everyones = torch.cat([embeddings, memory]), torch.cat([labels, memory_labels])
        same = (labels[:, None] == everyones[None]).float()
        others = torch.ones_like(same).scatter(1, torch.arange(anchors)[:, None], 0)
        weights = torch.cat([F.one_hot(labels, classes).float(), alpha * same * others], 1)
        part = torch.cat([torch.ones(anchors, classes), others], 1)
        scores = torch.cat([logits, embeddings @ everyone.t() / temperature], 1)
        scores = scores - scores.max(1, keepdim=True).values.detach()
        log_p = scores - torch.log((scores.exp() * part).sum(1, keepdim=True) + 1e-12)
        return -((weights * log_p).sum(1) / weights.sum(1)).mean()

    def ours() -> Tensor:
        return gpaco_loss(logits, embeddings, labels, memory, memory_labels, alpha=alpha, temperature=temperature)

    def backward_of(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            embeddings.grad = logits.grad = None
            loss().backward()

        return run

    if name == "released":
        return backward_of(released)
    if name == "gpaco":
        return backward_of(ours)
    if name == "pml":
        from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss

        bank = CrossBatchMemory(SupConLoss(temperature), DIM, references)
        bank.add_to_memory(memory, memory_labels, references)
        outside = torch.zeros(anchors, dtype=torch.bool)  # the batch meets the memory but does not join it

        return backward_of(lambda: bank(embeddings, labels, enqueue_mask=outside))

    z = embeddings.detach()
    everyone = torch.cat([z, memory])

    def products() -> None:
        scores = z @ everyone.t()
        scores @ everyone
        del scores
        again = z @ everyone.t()
        again[:, :anchors].t() @ z

    return products


def needed(name: str, anchors: int, references: int, classes: int) -> float:
    """Bytes that a contestant is expected to need at least, to know what not to run."""
    matrix = 4.0 * anchors * (anchors + references + classes)
    return {"released": 8 * matrix, "pml": 8 * matrix, "products": matrix, "gpaco": 0}[name]


def measure_time(shape: tuple[int, int, int], names: list[str], rounds: int) -> dict[str, float]:
    """Median seconds of each contestant, run in turn."""
    runs = {name: contestant(name, *shape) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        runs[name]()
    for _ in range(rounds):
        for name in names:
            start = time.perf_counter()
            runs[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def measure_memory(name: str, shape: tuple[int, int, int]) -> float:
    """Megabytes above the size before the pass. Call in a new process."""
    run = contestant(name, *shape)
    contestant(name, 32, 32, 3)()  # libraries are loaded and their buffers made
    return rise(run)


def rise(run: Callable[[], object]) -> float:
    """Megabytes by which the peak resident size goes up while `run` runs."""

    def size(field: str) -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split(f"{field}:")[1].split()[0])

    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from the present size
    before = size("VmRSS")
    run()
    return (size("VmHWM") - before) / 1024


def in_a_new_process(what: str, *arguments: object, script: str = __file__) -> dict[str, float]:
    environment = dict(os.environ)
    if what == "memory":
        environment |= GIVE_BACK
    command = [sys.executable, script, "--task", json.dumps([what, *arguments])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{arguments} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Peak memory against size, both axes logarithmic: ours has slope 1, a matrix slope 2."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "loss"  # the same file for the same numbers
    points = [row for row in rows if row["anchors"] == row["references"] and row["classes"] == 150 and row["MB"]]
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for name, marker in zip(CONTESTANTS, "osD^", strict=True):
        mine = sorted((int(str(row["anchors"])), float(str(row["MB"]))) for row in points if row["contestant"] == name)
        axes.loglog(*zip(*mine, strict=True), marker=marker, label=name)
    sizes = [2**k for k in range(10, 15)]
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("anchors (and as many references)")
    axes.set_ylabel("peak memory, MB")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def table(rows: list[dict[str, object]]) -> str:
    """The rows as Markdown, with the ratio to the released formula where that was run."""
    lines = [
        "| anchors + references, classes | implementation | seconds | MB | released / this, time | memory |",
        "|---|---|---|---|---|---|",
    ]
    base = {
        tuple(row[k] for k in ("anchors", "references", "classes")): row
        for row in rows
        if row["contestant"] == "released"
    }
    for row in rows:
        n, m, c = (row[k] for k in ("anchors", "references", "classes"))
        released = base.get((n, m, c))
        ratios = [f"{float(str(released[k])) / float(str(row[k])):.1f}" if released else "" for k in ("seconds", "MB")]
        lines.append(
            f"| {n:,} + {m:,}, {c:,} | {row['contestant']} | {row['seconds']} | {row['MB']} | {' | '.join(ratios)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="try the script: few shapes and rounds, no files")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        what, shape, *names = json.loads(options.task)
        if what == "time":
            print(json.dumps(measure_time(shape, names[1:], names[0])))
        else:
            print(json.dumps({"MB": measure_memory(names[0], shape)}))
        return

    shapes, growth = (SHAPES, GROWTH) if not options.quick else (SHAPES[:1], GROWTH[:3])
    rows: list[dict[str, object]] = []
    for shape in [*shapes, *(shape for shape in growth if shape not in shapes)]:
        possible = [name for name in CONTESTANTS if needed(name, *shape) < LIMIT]
        rounds = 20 if shape[0] < 1000 else 7 if shape[0] < 8192 else 3
        seconds = in_a_new_process("time", shape, 2 if options.quick else rounds, *possible)
        for name in possible:
            peak = in_a_new_process("memory", shape, name)["MB"]
            figures = {"seconds": round(seconds[name], 5), "MB": round(peak, 1)}
            sizes = dict(zip(("anchors", "references", "classes"), shape, strict=True)) | {"dim": DIM}
            rows.append({**sizes, "contestant": name, **figures})
            print(f"{shape}  {name:<9} {figures['seconds']:9.4f} s {figures['MB']:9.1f} MB", flush=True)

    if not options.quick:
        write(options.out / "loss.csv", rows)
        plot(rows, options.out / "loss.svg")
    print(table(rows))


if __name__ == "__main__":
    main()
