"""Accuracy against the number of epochs: when does GPaCo overtake balanced softmax? About eleven hours of one core.

    python benchmarks/budget.py CIFAR --out DIR [--minutes 60] [--amp bf16]

CIFAR-100-LT with imbalance factor 100, an 8-layer ResNet, two plain views for all methods, a cosine to zero over 30, 60
and 120 epochs with 3, 2 and 1 seeds. The last epoch is tested, nothing is tuned. Each cell is a run in DIR, which the
same command resumes; its row goes to benchmarks/results/budget.csv when it is finished, and budget.svg and the table of
docs/benchmarks.md are made again.
With --minutes no cell begins after that time. --amp bf16 takes about half of the time on a processor with instructions
for it.
"""

import argparse
import sys
import time
from itertools import groupby
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from cells import fitted_ece
from table import append, has, read, spread, write_between

import gpaco
from gpaco.cli.display import Display

RESULTS = Path(__file__).parent / "results" / "budget.csv"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
SEEDS = {30: 3, 60: 2, 120: 1}
GPACO = ("method.alpha=0.01", "method.temperature=0.07", "method.memory=1024")
METHODS = {
    "balanced-softmax": ("balanced-softmax", ()),
    "gpaco, as published": ("gpaco", (*GPACO, "method.prior=counts", "method.start=released")),
    "gpaco": ("gpaco", (*GPACO, "method.prior=unbiased", "method.start=balanced")),
    "ce": ("ce", ()),  # at 60 epochs only
}
NAMES = {"balanced-softmax": "balanced softmax", "gpaco, as published": "GPaCo as published"}
NAMES |= {"gpaco": "GPaCo, balanced start, unbiased prior", "ce": "cross entropy"}
FIGURES = ("top1", "many", "medium", "few", "ece_fitted")
COMMON = ("views.first=plain", "views.second=plain", "train.report=false")


def cells() -> list[tuple[str, int, int]]:
    """Method, epochs and seed, the cheap ones first, so that a part of it is already a comparison."""
    every = [(epochs, seed, name) for epochs, seeds in SEEDS.items() for seed in range(seeds) for name in METHODS]
    return [(name, epochs, seed) for epochs, seed, name in every if name != "ce" or epochs == 60]


def train(data: str, out: Path, name: str, epochs: int, seed: int, amp: str) -> None:
    key = {"dataset": "cifar100-lt100", "method": name, "epochs": epochs, "seed": seed, "amp": amp}
    if has(RESULTS, key):
        return
    method, settings = METHODS[name]
    folder = out / name.replace(", ", "-").replace(" ", "-") / f"epochs-{epochs}" / f"seed-{seed}"
    print(folder, flush=True)
    run = gpaco.train(
        data,
        out=folder,
        method=method,
        model="resnet8",
        epochs=epochs,
        seed=seed,
        long_tail=100,
        validation=0.0,
        settings=[*COMMON, *settings, f"train.amp={amp}"],
        say=lambda line: None,
        show=Display(sys.stdout).show,
    )
    metrics, stored = run.metrics, np.load(run.folder / "predictions.npz")
    figures = {name: round(metrics[name], 4) for name in ("top1", "many", "medium", "few", "macro")}
    figures["ece_fitted"] = round(fitted_ece(stored["logits"], stored["labels"]), 4)
    seconds = round(sum(row["time"]["seconds"] for row in run.history))
    append(RESULTS, {**key, "model": "resnet8", "settings": " ".join(settings), **figures, "seconds": seconds})


def plot(path: Path, amp: str) -> None:
    """All classes and few-shot classes against epochs; small dots are single seeds."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "budget"
    found = [row for row in read(RESULTS) if row["amp"] == amp]
    rows = sorted(found, key=lambda row: (list(METHODS).index(row["method"]), int(row["epochs"])))
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axis, (what, title) in zip(
        figure.subplots(1, 2), {"top1": "all classes", "few": "few-shot classes"}.items(), strict=True
    ):
        for name, mine in groupby(rows, lambda row: row["method"]):
            points = [(int(row["epochs"]), 100 * float(row[what])) for row in mine]
            means = {epochs: mean(y for x, y in points if x == epochs) for epochs, _ in points}
            (line,) = axis.plot(list(means), list(means.values()), "o-", label=NAMES[name])
            axis.plot(*zip(*points, strict=True), ".", color=line.get_color(), markersize=4)
        axis.set(title=title, xlabel="epochs", ylabel="accuracy (%)", xscale="log", xticks=list(SEEDS))
        axis.set_xticklabels([str(epochs) for epochs in SEEDS])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def table(amp: str) -> str:
    """Return a Markdown table, mean and standard deviation over seeds in percent."""
    lines = ["| epochs | method | seeds | all | many | medium | few | ECE |", "|---" * 8 + "|"]
    for epochs in SEEDS:
        for name in METHODS:
            cell = (str(epochs), name, amp)
            rows = [row for row in read(RESULTS) if (row["epochs"], row["method"], row["amp"]) == cell]
            if rows:
                figures = [spread([row[what] for row in rows]) for what in FIGURES]
                lines.append(f"| {epochs} | {NAMES[name]} | {len(rows)} | {' | '.join(figures)} |")
    return "\n".join(["", *lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="the folder cifar-100-python, or the one above it")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--amp", choices=("off", "bf16"), default="bf16")
    parser.add_argument("--epochs", type=int, nargs="+", choices=SEEDS, default=list(SEEDS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    end = time.monotonic() + 60 * options.minutes
    for name, epochs, seed in cells():
        if epochs not in options.epochs:
            continue
        if time.monotonic() > end:
            break
        train(options.data, options.out, name, epochs, seed, options.amp)
        plot(RESULTS.with_suffix(".svg"), options.amp)
        write_between(PAGE, "<!-- budget -->", "<!-- end of budget -->", table(options.amp))


if __name__ == "__main__":
    main()
