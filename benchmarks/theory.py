"""The theory of the paper, measured: gradients by class frequency, mass on the centers, and what alpha and memory do.

    python benchmarks/theory.py CIFAR --out DIR [--minutes 60]

CIFAR-100-LT with imbalance factor 100, heads on frozen EfficientNet-Lite0 features of 96 pixels, computed once, 20
epochs, three seeds. Three parts, each with its rows in benchmarks/results/theory.csv; the first two average over groups
of ten classes, from the most to the least frequent:

    gradients   gradient norm at a class center after training (Fig. 2), five methods, and its log-log slope
    mass        softmax mass on the own center of an anchor, measured and by remark 2
    knobs       accuracy over alpha and memory: with the prior of the paper, with that prior corrected after training,
                and trained with the unbiased prior

The same command resumes; theory.svg is drawn from the rows so far. About three hours of one core.
"""

import argparse
import math
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from table import append, has, read

import gpaco
from gpaco import analysis
from gpaco.training.run import Run

RESULTS = Path(__file__).parent / "results" / "theory.csv"
METHODS = ("ce", "supcon", "balanced-softmax", "paco", "gpaco")
KNOBS = [(0.05, 0), (0.05, 1024), (0.05, 8192), (0.2, 0), (0.2, 1024), (0.2, 8192)]
SEEDS = 3
COMMON = (
    *("train.report=false", "method.fuse=false", "train.epochs=20", "model.hidden=512", "model.size=96"),
    *("views.first=plain", "views.second=plain", "data.allow_leakage=true", "train.checkpoint_every=20"),
)


class Late(Exception):
    """There is no time for another run."""


def head(data: str, out: Path, name: str, method: str, seed: int, until: float, settings: Iterable[str] = ()) -> Run:
    """Return the run of one head, trained if it is not there; the features are shared by all."""
    folder = out / name / f"seed-{seed}"
    if not (folder / "metrics.json").is_file() and time.monotonic() > until:
        raise Late
    print(folder, flush=True)
    return gpaco.train(
        data,
        out=folder,
        method=method,
        weights="package",
        train="head",
        long_tail=100,
        validation=0.0,
        seed=seed,
        settings=[*COMMON, f"train.features={out / 'features'}", *settings],
    )


def add(part: str, method: str, settings: str, seed: int, measure: str, value: float, expected: float | None) -> None:
    """Write a row, unless it is there."""
    key = {"part": part, "method": method, "settings": settings, "seed": seed, "measure": measure}
    if not has(RESULTS, key):
        found = {"value": f"{value:.5g}", "expected": "" if expected is None else f"{expected:.5g}"}
        append(RESULTS, {"dataset": "cifar100-lt100", **key, **found})


def measure_classes(data: str, out: Path, seed: int, until: float) -> None:
    """Add the gradients of every method, and the mass of GPaCo, for groups of ten classes."""
    for method in METHODS:
        if has(RESULTS, {"part": "gradients", "method": method, "seed": seed, "measure": "slope"}):
            continue
        about = analysis.analyze(head(data, out, method, method, seed, until))
        counts, norms = np.array(about["counts"]), np.array(about["gradients"]["centers"], float)
        groups = {f"{counts[own].mean():.1f}": own for own in np.split(np.argsort(-counts, kind="stable"), 10)}
        if method == "gpaco":
            mass = np.array(about["mass"]["center"], float)
            best = analysis.optimal_probabilities(about["shown"], **about["settings"]).center
            for name, own in groups.items():
                add("mass", method, name, seed, "own center", np.nanmean(mass[own]), best[own].mean())
        for name, own in groups.items():
            add("gradients", method, name, seed, "norm", np.nanmean(norms[own]), None)
        add("gradients", method, "", seed, "slope", about["gradients"]["slope"], None)


def measure_knobs(data: str, out: Path, seed: int, until: float) -> None:
    for alpha, memory in KNOBS:
        name = f"alpha={alpha:g} memory={memory}"
        for prior in ("counts", "unbiased"):
            if has(RESULTS, {"part": "knobs", "settings": name, "seed": seed, "measure": prior}):
                continue
            given = (f"method.alpha={alpha}", f"method.memory={memory}", f"method.prior={prior}")
            run = head(data, out, f"{prior}-alpha-{alpha}-memory-{memory}", "gpaco", seed, until, given)
            if prior == "counts":
                add("knobs", "gpaco", name, seed, "counts, corrected", gpaco.evaluate(run, unbiased=True)["top1"], None)
            add("knobs", "gpaco", name, seed, prior, run.metrics["top1"], None)


def plot(path: Path) -> None:
    """Draw gradients and mass against images per class, and accuracy over the knobs; lines are means over seeds."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "theory"
    rows, figure = read(RESULTS), Figure(figsize=(13, 3.8), layout="constrained")
    gradients, mass, knobs = figure.subplots(1, 3)
    for method in METHODS:
        mine = [row for row in rows if (row["part"], row["method"]) == ("gradients", method)]
        slopes = [float(row["value"]) for row in mine if row["measure"] == "slope"]
        if slopes:
            x, y = _means(row for row in mine if row["measure"] == "norm")
            gradients.loglog(x, y, "o-", markersize=3, label=f"{method}, slope {mean(slopes):+.2f}")
    gradients.set(title="gradient norm at the class center", xlabel="training images of a class")
    own = [row for row in rows if row["part"] == "mass"]
    mass.plot(*_means(own), "o-", label="measured")
    mass.plot(*_means(own, "expected"), "k--", label="remark 2")
    mass.set(title="mass on the own center", xlabel="training images of a class", xscale="log")
    names = [f"alpha={alpha:g} memory={memory}" for alpha, memory in KNOBS]
    for measure in ("counts", "counts, corrected", "unbiased"):
        mine = [row for row in rows if (row["part"], row["measure"]) == ("knobs", measure)]
        done = [name for name in names if any(row["settings"] == name for row in mine)]
        accuracy = {name: [100 * float(row["value"]) for row in mine if row["settings"] == name] for name in done}
        (line,) = knobs.plot(done, [mean(accuracy[name]) for name in done], "-", label=f"prior {measure}")
        for name in done:
            knobs.plot([name] * len(accuracy[name]), accuracy[name], ".", color=line.get_color())
    knobs.set(title="accuracy (%)")
    knobs.set_xticks(range(len(names)), [name.replace(" memory=", "\n").replace("alpha=", "") for name in names])
    knobs.set_xlabel("alpha, memory")
    for axis in (gradients, mass, knobs):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def _means(rows: Iterable[dict[str, str]], column: str = "value") -> tuple[list[float], list[float]]:
    """Return the images per class of each group of classes, and the mean over seeds of a column."""
    groups: dict[float, list[float]] = {}
    for row in rows:
        groups.setdefault(float(row["settings"]), []).append(float(row[column]))
    return list(groups), [mean(values) for values in groups.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="the folder cifar-100-python, or the one above it")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=math.inf)
    options = parser.parse_args()
    torch.set_num_threads(1)
    until = time.monotonic() + 60 * options.minutes
    try:
        for seed in range(SEEDS):
            measure_classes(options.data, options.out, seed, until)
            measure_knobs(options.data, options.out, seed, until)
    except Late:
        print(f"stopped after {options.minutes:g} minutes; the same command resumes")
    plot(RESULTS.with_suffix(".svg"))


if __name__ == "__main__":
    main()
