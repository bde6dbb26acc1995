"""The theory of the paper, measured: mass on the centers, gradients by class frequency, and what alpha and memory do.

    python benchmarks/theory.py CIFAR --out DIR [--minutes 60]

CIFAR-100-LT with imbalance factor 100, heads on frozen EfficientNet-Lite0 features of 96 pixels, computed once.
Three parts, each with its rows in benchmarks/results/theory.csv:

    gradients   log-log slope of the gradient norm of a class center against its images (Fig. 2), five methods
    mass        softmax mass on the own center, measured against remark 2, by class group
    knobs       accuracy over alpha and memory with the published prior, raw and corrected (--unbiased), three seeds

The same command resumes; theory.svg is drawn from the rows so far. About an hour of two cores.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from table import append, has, read

import gpaco
from gpaco import analysis
from gpaco.training.run import Run

RESULTS = Path(__file__).parent / "results" / "theory.csv"
METHODS = ("ce", "supcon", "balanced-softmax", "paco", "gpaco")
KNOBS = [(0.05, 0), (0.05, 1024), (0.05, 4096), (0.2, 1024), (0.2, 4096)]
SEEDS = 3
COMMON = ("train.report=false", "method.fuse=false", "train.epochs=20", "model.hidden=512", "model.size=96")


def head(data: str, out: Path, name: str, method: str, seed: int, *settings: str) -> Run:
    """The run of one head; the features are shared by all."""
    every = [*COMMON, f"train.features={out / 'features'}", *settings]
    return gpaco.train(
        data,
        out=out / name / f"seed-{seed}",
        method=method,
        weights="package",
        train="head",
        long_tail=100,
        seed=seed,
        settings=every,
    )


def measure_gradients(data: str, out: Path) -> None:
    for method in METHODS:
        key = {"part": "gradients", "method": method, "settings": "", "seed": 0}
        if has(RESULTS, key):
            continue
        run = head(data, out, method, method, 0)
        norms = analysis.class_gradient_norms(run, images=1000)
        append(RESULTS, {**key, "measure": "slope", "value": norms.slope, "expected": ""})


def measure_mass(data: str, out: Path) -> None:
    run = head(data, out, "gpaco", "gpaco", 0)
    about = analysis.analyze(run)
    mass, counts = np.array(about["mass"]["center"], float), np.array(about["counts"])
    expected = analysis.optimal_probabilities(about["shown"], **about["settings"]).center
    for group, own in {"many": counts > 100, "medium": (counts >= 20) & (counts <= 100), "few": counts < 20}.items():
        key = {"part": "mass", "method": "gpaco", "settings": group, "seed": 0}
        if not has(RESULTS, key):
            value, best = float(np.nanmean(mass[own])), float(expected[own].mean())
            append(RESULTS, {**key, "measure": "mass on the own center", "value": value, "expected": best})


def measure_knobs(data: str, out: Path, end: float) -> None:
    for seed in range(SEEDS):
        for alpha, memory in KNOBS:
            settings = (f"method.alpha={alpha}", f"method.memory={memory}", "method.prior=counts")
            key = {"part": "knobs", "method": "gpaco", "settings": " ".join(settings), "seed": seed}
            if has(RESULTS, {**key, "measure": "top1, corrected"}) or time.monotonic() > end:
                continue
            run = head(data, out, f"alpha-{alpha}-memory-{memory}", "gpaco", seed, *settings)
            for name, corrected in (("top1", False), ("top1, corrected", True)):
                value = gpaco.evaluate(run, unbiased=corrected)["top1"]
                append(RESULTS, {**key, "measure": name, "value": value, "expected": ""})


def plot(path: Path) -> None:
    """Accuracy over the knobs: raw falls with alpha and memory, corrected should not."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "theory"
    rows = [row for row in read(RESULTS) if row["part"] == "knobs"]
    names = list(dict.fromkeys(row["settings"].removesuffix(" method.prior=counts") for row in rows))
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axis = figure.subplots()
    for measure, mark in (("top1", "o"), ("top1, corrected", "s")):
        mine = [row for row in rows if row["measure"] == measure]
        places = [names.index(row["settings"].removesuffix(" method.prior=counts")) for row in mine]
        axis.plot(places, [100 * float(row["value"]) for row in mine], mark, alpha=0.6, label=measure)
    axis.set_xticks(range(len(names)), [name.replace("method.", "").replace(" ", "\n") for name in names])
    axis.set_ylabel("accuracy (%)")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="the folder cifar-100-python, or the one above it")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    measure_gradients(options.data, options.out)
    measure_mass(options.data, options.out)
    measure_knobs(options.data, options.out, end)
    plot(RESULTS.with_suffix(".svg"))


if __name__ == "__main__":
    main()
