"""Every method in one table: accuracy with intervals, calibration after one fitted temperature, and latency.

    python benchmarks/methods.py DATA --out DIR [--part heads|scratch] [--minutes N] [--methods ...]
    python benchmarks/methods.py --table        only docs/methods.md and the plot, from the CSV file

DATA is a folder with CIFAR-100 (a folder cifar-100-python, or its archive) and Fashion-MNIST (a folder with the four
files) somewhere below it, or with one of them.

heads: CIFAR-100-LT with factor 100, heads on frozen features of EfficientNet-Lite0, images of 96 pixels, embedded once.
Every method that works on frozen features is tuned with the same number of runs, two learning rates and two values of
weight decay (of tau for tau-norm), on training images held back (cells.py says how), and trained with three seeds.

scratch: Fashion-MNIST-LT with factor 100, a ResNet-8, 10 epochs, the defaults of every method, no tuning, two seeds.

One thread. Rows are added to benchmarks/results/methods.csv as they come, seed by seed, so that a part of it is already
a comparison. The same command resumes: finished runs are not repeated. After --minutes no further run begins. Latency
is that of one image and of a batch of 64, as a multiple of cross entropy.
"""

import argparse
import csv
import math
import platform
import subprocess
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
from cells import Study, figures, train, tune
from loss import machine

import gpaco
from gpaco.api.compare import interval
from gpaco.recipes.settings import METHODS
from gpaco.tasks.classification.predictor import load_classifier, total_cost
from gpaco.tasks.cost import measure
from gpaco.training.run import Run

RESULTS = Path(__file__).parent / "results" / "methods.csv"
PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
PLOT = Path(__file__).parents[1] / "docs" / "images" / "methods.svg"
MEASURES = ("all", "many", "medium", "few", "ece", "parameters", "gflops", "ms1", "ms64")
HEADER = ["part", "dataset", "method", "seed", "settings", *MEASURES, "machine", "versions", "commit"]
TITLES = {
    "heads": "CIFAR-100-LT 100, heads on frozen features",
    "scratch": "Fashion-MNIST-LT 100, from scratch",
}
HEADS: tuple[str, ...] = (
    *("ce", "balanced-softmax", "focal", "class-balanced", "cb-focal", "ldam-drw", "bcl", "crt", "lws", "tau-norm"),
    *("ncm", "causal-norm", "gpaco", "paco", "supcon", "multitask", "gaussian"),
)
SCRATCH = tuple(name for name in METHODS if name != "gaussian")
SEEDS = {"heads": 3, "scratch": 2}
_RATES = ("optimizer.lr=0.02", "optimizer.lr=0.05")
GRID = [list(one) for one in product(_RATES, ("optimizer.weight_decay=5e-4", "optimizer.weight_decay=2e-3"))]
GRIDS = {"tau-norm": [list(one) for one in product(_RATES, ("method.norm_tau=0.5", "method.norm_tau=1"))]}
COMMON = ("train.report=false", "data.allow_leakage=true", "train.checkpoint_every=100", "train.workers=0")


class Late(Exception):
    """There is no time for another run."""


def add(part: str, method: str, seed: int, settings: Sequence[str], run: Run) -> None:
    """Write the row of a run, unless it is there."""
    known = read()
    if any((row["part"], row["method"], row["seed"]) == (part, method, str(seed)) for row in known):
        return
    found, predictor = figures(run, 0.0), load_classifier(run)
    price = total_cost([predictor])
    numbers = {"all": found["top1"], "many": found["many"], "medium": found["medium"], "few": found["few"]}
    row = {"part": part, "dataset": TITLES[part].partition(",")[0], "method": method, "seed": str(seed)}
    row |= {"settings": " ".join(settings)}
    row |= {key: "" if value is None else f"{value:.4f}" for key, value in numbers.items()}
    row |= {
        "ece": f"{found['ece_fitted']:.4f}",
        "parameters": str(price["parameters"]),
        "gflops": f"{price['gflops']:.4g}",
    }
    size = predictor.card.view.size
    times = measure(predictor, size, size, seconds=1)["batches"]
    row |= {"ms1": f"{times['1']['median']:.3f}", "ms64": f"{64 * times['64']['median']:.2f}"}
    row |= {"machine": machine(), "versions": f"gpaco {gpaco.__version__}, python {platform.python_version()}"}
    row["commit"] = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=RESULTS.parents[1], capture_output=True, text=True, check=False
    ).stdout.strip()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, HEADER)
        if not known:
            writer.writeheader()
        writer.writerow(row)
    print(f"{part}, {method}, seed {seed}: {row['all']}", flush=True)


def read() -> list[dict[str, str]]:
    if not RESULTS.is_file():
        return []
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


def data_of(part: str, data: Path) -> str:
    """The data of a part below a folder; "" if it is not there."""
    inside = [data, *sorted(data.rglob("*"))] if data.is_dir() else [data]
    if part == "heads":
        named = [path for path in inside if path.name.startswith("cifar-100-python")]
        return str(next((path for path in named if path.is_dir()), named[0] if named else ""))
    files = [path for path in inside if path.name.startswith("train-images-idx3-ubyte")]
    return str(files[0].parent) if files else ""


def heads(data: str, out: Path, method: str, seed: int, until: float) -> None:
    """Tune a method, train it with a seed, and write the row."""
    common = (
        *("model.name=tf_efficientnet_lite0", "model.weights=package", "model.size=96", "model.hidden=512"),
        *("method.fuse=false", "views.first=plain", "views.second=plain", "train.cached_views=4"),
        *(f"train.features={out / 'features'}", "train.epochs=20", "train.batch_size=128", *COMMON),
    )
    study = Study(data, out, "head", common, RESULTS)
    fixed, grid = [f"method.name={method}"], GRIDS.get(method, GRID)
    chosen: list[str] = []
    if method != "gaussian":
        for place in range(1, len(grid) + 1):
            if time.monotonic() > until:
                raise Late
            chosen = tune(study, method, fixed, grid[:place], 100)
    if time.monotonic() > until:
        raise Late
    every = [*fixed, *chosen, "data.long_tail=100", "data.validation=0", f"train.seed={seed}"]
    add("heads", method, seed, chosen, train(study, out / "head" / method / f"seed-{seed}", every))


def scratch(data: str, out: Path, method: str, seed: int, until: float) -> None:
    """Train a method with a seed, and write the row."""
    if time.monotonic() > until:
        raise Late
    common = ("model.name=resnet8", "model.weights=none", "data.long_tail=100", "data.validation=0", "train.epochs=10")
    study = Study(data, out, "all", (*common, "method.fuse=false", *COMMON), RESULTS)
    folder = out / "scratch" / method / f"seed-{seed}"
    add("scratch", method, seed, [], train(study, folder, [f"method.name={method}", f"train.seed={seed}"]))


def measured(part: str, data: str, out: Path, methods: Sequence[str], seeds: int, until: float) -> None:
    """Do one part, seed by seed, until it is time to stop."""
    cell = {"heads": heads, "scratch": scratch}[part]
    for seed, method in product(range(seeds), methods):
        if method == "gaussian" and seed:  # it has nothing random
            continue
        cell(data, out, method, seed, until)


def table() -> str:
    """The results as Markdown: mean over seeds and half of the 95 % interval."""
    lines = []
    for part, title in TITLES.items():
        rows = [row for row in read() if row["part"] == part]
        if not rows:
            lines += [f"### {title}", "", "Not measured yet.", ""]
            continue
        names = [name for name in METHODS if any(row["method"] == name for row in rows)]
        base = next((row for row in rows if row["method"] == "ce"), None)
        lines += [
            f"### {title}",
            "",
            "| method | seeds | all | many | medium | few | ECE | latency 1 / 64 |",
            "|---" * 8 + "|",
        ]
        for name in names:
            mine = [row for row in rows if row["method"] == name]
            cells = [
                percent([float(row[key]) for row in mine if row[key]])
                for key in ("all", "many", "medium", "few", "ece")
            ]
            slower = [
                "-" if base is None else f"{float(mine[0][key]) / float(base[key]):.2f}" for key in ("ms1", "ms64")
            ]
            lines.append(f"| `{name}` | {len(mine)} | {' | '.join(cells)} | {slower[0]} / {slower[1]} |")
        missing = [name for name in (HEADS if part == "heads" else SCRATCH) if name not in names]
        lines += ["", f"Not measured yet: {', '.join(missing)}." if missing else "All methods.", ""]
    if read():
        lines += ["![Accuracy against the time of an answer](images/methods.svg)", ""]
    return "\n".join(lines)


def percent(values: Sequence[float]) -> str:
    found = interval(values)
    if found["mean"] is None:
        return "-"
    return f"{100 * found['mean']:.1f}" + ("" if found["interval"] is None else f" ± {100 * found['interval']:.1f}")


def plot() -> None:
    """Accuracy against latency, as in Fig. 1 a of the paper."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    parts = [part for part in ("heads", "scratch") if any(row["part"] == part for row in read())]
    figure, axes = pyplot.subplots(1, len(parts), figsize=(6 * len(parts), 4), squeeze=False)
    for axis, part in zip(axes[0], parts, strict=True):
        rows = [row for row in read() if row["part"] == part]
        for name in dict.fromkeys(row["method"] for row in rows):
            mine = [row for row in rows if row["method"] == name]
            x, y = float(mine[0]["ms1"]), 100 * sum(float(row["all"]) for row in mine) / len(mine)
            axis.plot(x, y, "o")
            axis.annotate(name, (x, y), fontsize=7, xytext=(3, 3), textcoords="offset points")
        axis.set(xlabel="milliseconds for one image", ylabel="accuracy, %", title=part)
    figure.tight_layout()
    figure.savefig(PLOT, metadata={"Date": None})


def write_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- results -->\n", "<!-- end of results -->"
    PAGE.write_text(f"{text.split(begin)[0]}{begin}\n{table()}\n{end}{text.split(end)[1]}", encoding="utf-8")
    if read():
        plot()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", choices=tuple(TITLES))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table and (options.data is None or options.out is None):
        parser.error("give DATA and --out DIR, or --table")
    torch.set_num_threads(1)
    until = time.monotonic() + 60 * options.minutes
    try:
        for part in () if options.table else (options.part,) if options.part else TITLES:
            data, every = data_of(part, options.data), HEADS if part == "heads" else SCRATCH
            if not data:
                print(f"{part}: there is no such data in {options.data}")
                continue
            methods = [name for name in every if name in (options.methods or every)]
            measured(part, data, options.out, methods, options.seeds or SEEDS[part], until)
    except Late:
        print(f"stopped after {options.minutes:g} minutes; the same command continues")
    write_page()


if __name__ == "__main__":
    main()
