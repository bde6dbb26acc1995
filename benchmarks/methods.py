"""Every method in one table: accuracy with intervals, calibration after one fitted temperature, and latency.

    python benchmarks/methods.py DATA --out DIR [--part heads|scratch] [--minutes N] [--methods ...]
    python benchmarks/methods.py --latency --out DIR      latency of the networks in DIR, on a quiet machine
    python benchmarks/methods.py --table                  only docs/methods.md and the plot, from the CSV file

DATA is a folder with CIFAR-100 (a folder cifar-100-python, or its archive) and Fashion-MNIST (a folder with the four
files) somewhere below it, or with one of them.

heads: CIFAR-100-LT with factor 100, heads on frozen features of EfficientNet-Lite0, images of 96 pixels, embedded once.
Every method that works on frozen features is tuned with the same number of runs, two learning rates (two values of tau
for tau-norm), on training images held back (cells.py says how), and trained with three seeds.

scratch: Fashion-MNIST-LT with factor 100, a ResNet-8, 10 epochs, the defaults of every method, no tuning, two seeds.

One thread. Rows are added to benchmarks/results/methods.csv as they come, seed by seed, so that a part of it is already
a comparison. The same command resumes: finished runs are not repeated. After --minutes no further run begins. Latency
of networks trained from scratch is that of one image and of a batch of 64, as a multiple of cross entropy, measured in
turn.
"""

import argparse
import math
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from cells import Study, figures, train, tune
from table import append, has, read, rewrite, with_interval, write_between

from gpaco.recipes.settings import METHODS
from gpaco.system.distributed import choose_device
from gpaco.tasks.classification.predictor import Predictor, load_classifier, total_cost
from gpaco.tasks.cost import measure
from gpaco.training.run import Run

RESULTS = Path(__file__).parent / "results" / "methods.csv"
PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
PLOT = Path(__file__).parents[1] / "docs" / "images" / "methods.svg"
FIGURES = {"all": "top1", "many": "many", "medium": "medium", "few": "few", "ece": "ece_fitted"}
TITLES = {
    "heads": "CIFAR-100-LT 100, heads on frozen features",
    "scratch": "Fashion-MNIST-LT 100, from scratch",
}
HEADS: tuple[str, ...] = (
    *("ce", "balanced-softmax", "focal", "class-balanced", "cb-focal", "ldam-drw", "bcl", "crt", "lws", "tau-norm"),
    *("ncm", "causal-norm", "gpaco", "paco", "supcon", "multitask", "gaussian"),
)
SCRATCH = ("ce", *(name for name in METHODS if name not in ("ce", "gaussian")))
CONTINUE = ("crt", "lws", "tau-norm", "ncm")  # from scratch, their first stage is the run of cross entropy
SEEDS = {"heads": 3, "scratch": 2}
GRID = [["optimizer.lr=0.02"], ["optimizer.lr=0.05"]]
GRIDS = {"tau-norm": [["method.norm_tau=0.5"], ["method.norm_tau=1"]]}
COMMON = ("train.report=false", "data.allow_leakage=true", "train.checkpoint_every=100", "train.workers=0")


class Late(Exception):
    """There is no time for another run."""


def key_of(part: str, method: str, seed: int) -> dict[str, Any]:
    return {"part": part, "dataset": TITLES[part].partition(",")[0], "method": method, "seed": seed}


def add(part: str, method: str, seed: int, settings: Sequence[str], run: Run) -> None:
    """Write the row of a run, unless it is there."""
    key = key_of(part, method, seed)
    if has(RESULTS, key):
        return
    found, price = figures(run, 0.0), total_cost([load_classifier(run)])
    row: dict[str, Any] = {**key, "settings": " ".join(settings)}
    row |= {name: "" if found[key] is None else round(found[key], 4) for name, key in FIGURES.items()}
    row |= {"parameters": price["parameters"], "gflops": round(price["gflops"], 4)}
    append(RESULTS, row)
    print(f"{part}, {method}, seed {seed}: {row['all']}", flush=True)


def latency(model: Predictor, base: Predictor) -> dict[str, float]:
    """Milliseconds of one image and of a batch of 64, and as a multiple of `base`: the fastest of rounds in turn."""
    size, rounds = model.card.view.size, 15
    pairs = [[measure(one, size, size, seconds=0.1)["batches"] for one in (model, base)] for _ in range(rounds)]
    found: dict[str, float] = {}
    for batch in ("1", "64"):
        mine, theirs = (min(int(batch) * pair[place][batch]["median"] for pair in pairs) for place in (0, 1))
        found |= {f"ms{batch}": round(mine, 3), f"times{batch}": round(mine / theirs, 2)}
    return found


def measure_latencies(out: Path) -> None:
    """Add the latency of networks trained from scratch to their rows. Heads on one backbone cost the same."""
    choose_device("cpu")  # as all commands do: it keeps freed memory
    base = load_classifier(Run(out / "scratch" / "ce" / "seed-0"))
    rows: list[dict[str, Any]] = [*read(RESULTS)]
    for method in dict.fromkeys(row["method"] for row in rows if row["part"] == "scratch"):
        found = latency(load_classifier(Run(out / "scratch" / method / "seed-0")), base)
        print(f"{method}: {found}", flush=True)
        rows = [row | found if (row["part"], row["method"]) == ("scratch", method) else row for row in rows]
    rewrite(RESULTS, rows)


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
        *("method.fuse=false", "views.first=plain", "views.second=plain", "train.cached_views=4", "train.epochs=20"),
        *("train.batch_size=128", "optimizer.lr=0.05", f"train.features={out / 'features'}", *COMMON),
    )
    study = Study(data, out, "head", common, RESULTS)
    fixed, grid = [f"method.name={method}"], GRIDS.get(method, GRID)
    known = [row["settings"] for row in read(RESULTS) if (row["part"], row["method"]) == ("heads", method)]
    chosen = known[0].split() if known else []
    if method != "gaussian" and not chosen:
        for place in range(1, len(grid) + 1):
            if time.monotonic() > until:
                raise Late
            chosen = list(tune(study, method, fixed, grid[:place], 100)[0])
    if time.monotonic() > until:
        raise Late
    every = [*fixed, *chosen, "data.long_tail=100", "data.validation=0", f"train.seed={seed}"]
    run = train(study, out / "head" / method / f"seed-{seed}", every)
    add("heads", method, seed, chosen, run)


def scratch(data: str, out: Path, method: str, seed: int, until: float) -> None:
    """Train a method with a seed, and write the row."""
    if time.monotonic() > until:
        raise Late
    common = ("model.name=resnet8", "model.weights=none", "data.long_tail=100", "data.validation=0", "train.epochs=10")
    study = Study(data, out, "all", (*common, "method.fuse=false", *COMMON), RESULTS)
    given = [f"method.name={method}", f"train.seed={seed}"]
    if method in CONTINUE:
        first = train(study, out / "scratch" / "ce" / f"seed-{seed}", ["method.name=ce", f"train.seed={seed}"])
        given.append(f"method.first={first.folder}")
    run = train(study, out / "scratch" / method / f"seed-{seed}", given)
    add("scratch", method, seed, [], run)


def measured(part: str, data: str, out: Path, methods: Sequence[str], seeds: int, until: float) -> None:
    """Do one part, seed by seed, until it is time to stop."""
    cell = {"heads": heads, "scratch": scratch}[part]
    for seed, method in product(range(seeds), methods):
        if method == "gaussian" and seed:  # it has nothing random
            continue
        if not has(RESULTS, key_of(part, method, seed)):
            cell(data, out, method, seed, until)


def table() -> str:
    """The results as Markdown: mean over seeds and half of the 95% interval."""
    lines = []
    for part, title in TITLES.items():
        rows = [row for row in read(RESULTS) if row["part"] == part]
        if not rows:
            lines += [f"### {title}", "", "Not measured yet.", ""]
            continue
        names = [name for name in METHODS if any(row["method"] == name for row in rows)]
        timed = part == "scratch"
        columns = ("method", "seeds", "all", "many", "medium", "few", "ECE", *["latency 1 / 64"] * timed)
        lines += [f"### {title}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for name in names:
            mine = [row for row in rows if row["method"] == name]
            cells = [
                percent([float(row[key]) for row in mine if row[key]])
                for key in ("all", "many", "medium", "few", "ece")
            ]
            if timed:
                cells.append(f"{mine[0].get('times1') or '-'} / {mine[0].get('times64') or '-'}")
            lines.append(f"| `{name}` | {len(mine)} | {' | '.join(cells)} |")
        missing = [name for name in (HEADS if part == "heads" else SCRATCH) if name not in names]
        lines += ["", f"Not measured yet: {', '.join(missing)}.", ""] if missing else [""]
    if any(row.get("times64") for row in read(RESULTS)):
        lines += ["![Accuracy against inference time](images/methods.svg)", ""]
    return "\n".join(lines)


def percent(values: Sequence[float]) -> str:
    """The mean, and what is known about its spread: half of the 95% interval, or both values if there are two."""
    if len(values) == 2:
        return f"{100 * fmean(values):.1f} ({', '.join(f'{100 * value:.1f}' for value in sorted(values))})"
    return with_interval(values)


def plot() -> None:
    """Accuracy against latency of the networks trained from scratch, as in Fig. 1 a of the paper."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "methods"
    rows = [row for row in read(RESULTS) if row["part"] == "scratch" and row.get("times64")]
    figure = Figure(figsize=(7, 5), layout="constrained")
    axis = figure.subplots()
    points = []
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == name]
        x, y = (fmean(float(row[key]) for row in mine) for key in ("times64", "all"))
        points.append((100 * y, x, name))
    lowest = math.inf  # names of the crowd at 1 stand in a column, one below the other
    for y, x, name in sorted(points, reverse=True):
        lowest = min(y, lowest - 1.4) if x < 1.5 else lowest
        place = (1.3, lowest) if x < 1.5 else (1.02 * x, y)
        axis.plot(x, y, "o", markersize=4)
        axis.annotate(name, (x, y), place, fontsize=7, va="center", arrowprops={"arrowstyle": "-", "color": "0.8"})
    axis.set(xscale="log", xlabel="time of a batch of 64, as a multiple of cross entropy", ylabel="accuracy (%)")
    axis.set_xticks([1, 2, 3, 4], ["1", "2", "3", "4"])
    axis.minorticks_off()
    figure.savefig(PLOT, metadata={"Date": None})


def write_page() -> None:
    write_between(PAGE, "<!-- results -->", "<!-- end of results -->", f"\n{table()}")
    if any(row.get("times64") for row in read(RESULTS)):
        plot()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", choices=tuple(TITLES))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS))
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.latency and options.out is not None:
        torch.set_num_threads(1)
        measure_latencies(options.out)
        write_page()
        return
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
