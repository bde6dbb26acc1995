"""What the long-tailed benchmarks share: every number comes from a run folder, tuning sees validation data only.

A method is tuned on the training images of one long tail, of which a part is held back: each of its settings is trained
once, and macro recall on the held-out part selects one. It also selects tau, the factor by which the log frequencies
of the classes are subtracted from the logits afterwards. Then the method trains on all images with several seeds, and
the last epoch is tested, as it is and with tau. Everything can be stopped and resumed: finished runs are not repeated.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import table
from numpy.typing import NDArray
from table import has, read, with_interval, write_between

import gpaco
from gpaco.cli.display import Display
from gpaco.metrics.calibration import fit_factor
from gpaco.metrics.classification import ece, summarize
from gpaco.training.run import Run

TAUS = np.arange(-10, 21) / 10
FIGURES = {"all": "top1", "many": "many", "medium": "medium", "few": "few", "macro": "macro", "ece": "ece"}
FIGURES |= {"ece_fitted": "ece_fitted"}  # after one temperature: what a method is better at than its scale
COLUMNS = {"all": "all", "many": "many", "medium": "medium", "few": "few", "ECE": "ece_fitted"}  # of the table
BASE = "balanced-softmax"
RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Study:
    """What is the same for all cells."""

    data: str
    out: Path
    part: str  # of the model that trains
    common: tuple[str, ...]  # settings
    results: Path  # CSV file
    held_back: float = 0.3  # for tuning: with less, a class of 5 images would be judged by one


def train(study: Study, folder: Path, settings: Sequence[str]) -> Run:
    """The run in a folder, trained if it is not finished."""
    print(f"{folder.relative_to(study.out)}: {' '.join(settings)}", flush=True)
    every = [*study.common, f"train.part={study.part}", *settings]
    return gpaco.train(study.data, out=folder, settings=every, say=lambda line: None, show=Display(sys.stdout).show)


def tune(
    study: Study, method: str, fixed: Sequence[str], grid: Sequence[Sequence[str]], factor: float
) -> tuple[Sequence[str], float]:
    """The settings with the best macro recall on held-out images, and their best tau (of equals, the nearest to 0)."""
    split = [f"data.long_tail={factor:g}", f"data.validation={study.held_back}", "data.evaluate_on=val"]
    runs = []
    for number, settings in enumerate(grid):
        folder = study.out / study.part / "tuning" / f"factor-{factor:g}" / method / str(number)
        runs.append(train(study, folder, [*fixed, *settings, *split]))
        print(f"{100 * runs[-1].metrics['macro']:.1f} on validation data", flush=True)
    best = int(np.argmax([run.metrics["macro"] for run in runs]))
    scores = [figures(runs[best], tau)["macro"] for tau in TAUS]
    tau = float(min(TAUS[np.isclose(scores, max(scores), atol=1e-9)], key=abs))
    print(f"{study.part}, {method}: {' '.join(grid[best])}, tau {tau:g}", flush=True)
    return grid[best], tau


def figures(run: Run, tau: float) -> dict[str, Any]:
    """Metrics of a run's predictions with tau times the log frequency of each class subtracted."""
    stored, metrics = np.load(run.folder / "predictions.npz"), run.metrics
    counts = np.maximum(np.asarray(metrics["counts"], float), 1)
    logits = stored["logits"] - (tau * np.log(counts / counts.sum())).astype(np.float32)
    found = summarize(logits, stored["labels"], metrics["counts"], [str(c) for c in range(len(counts))])
    return found | {"ece_fitted": fitted_ece(logits, stored["labels"])}


def fitted_ece(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """The calibration error with one temperature, each half of the images with the one fitted on the other half."""
    half = np.random.default_rng(0).permutation(len(labels)) < len(labels) // 2
    sure = np.empty(len(labels))
    for fit, test in ((half, ~half), (~half, half)):
        scores = fit_factor(logits[fit], labels[fit]) * logits[test].astype(np.float64)
        sure[test] = 1 / np.exp(scores - scores.max(1, keepdims=True)).sum(1)
    return ece(sure, logits.argmax(1) == labels) or 0.0


def final(
    study: Study, method: str, fixed: Sequence[str], chosen: Sequence[str], tau: float, factor: float, seed: int
) -> None:
    """Train on all images, test the last epoch, and write a row without tau and one with it."""
    folder = study.out / study.part / f"factor-{factor:g}" / method / f"seed-{seed}"
    settings = [*fixed, *chosen, f"data.long_tail={factor:g}", "data.validation=0", f"train.seed={seed}"]
    run = train(study, folder, settings)
    seconds = sum(row["time"]["seconds"] for row in run.history)
    for one in dict.fromkeys((0.0, tau)):
        result = figures(run, one)
        row = {"dataset": "cifar100", "part": study.part, "factor": f"{factor:g}", "method": method}
        row |= {"settings": " ".join(chosen)}
        row |= {"seed": str(seed), "tau": f"{one:g}"}
        row |= {name: "" if result[key] is None else f"{result[key]:.4f}" for name, key in FIGURES.items()}
        append(study.results, row | {"seconds": f"{seconds:.0f}"})


def append(path: Path, row: dict[str, str]) -> None:
    """Add a row to a CSV file, unless it has one of the same cell."""
    key = ("part", "factor", "method", "settings", "seed", "tau")
    if not has(path, {name: row[name] for name in key}):
        table.append(path, row)


def summary(path: Path, against: str) -> str:
    """A Markdown table: mean over seeds and half of its 95% interval, and the difference to `against` seed by seed.

    Rows with a tuned tau are compared with those of `against` with its own, which are those without if that was 0.
    """
    cells: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    for row in read(path):
        tau = "" if float(row["tau"]) == 0 else row["tau"]
        cells.setdefault((row["part"], row["factor"], row["method"], tau), {})[row["seed"]] = row
    lines = [f"| part | factor | method | tau | seeds | {' | '.join(COLUMNS)} | all - {against} |"]
    lines.append("|---" * (len(COLUMNS) + 6) + "|")
    for (part, factor, method, tau), seeds in cells.items():
        base = dict(cells.get((part, factor, against, ""), {}))
        if tau:
            for key in [key for key in cells if key[:3] == (part, factor, against) and key[3]]:
                base |= cells[key]
        pairs = [float(row["all"]) - float(base[seed]["all"]) for seed, row in seeds.items() if seed in base]
        values = [[float(row[name]) for row in seeds.values() if row[name]] for name in COLUMNS.values()]
        shown = " | ".join(with_interval(one, none="none") for one in values)  # "few" of a short tail is none
        difference = with_interval(pairs, "+") if pairs and method != against else ""
        lines.append(f"| {part} | {factor} | {method} | {tau} | {len(seeds)} | {shown} | {difference} |")
    return "\n".join(lines)


def run_study(
    study: Study,
    methods: Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]]]],
    factors: Sequence[float],
    seeds: int,
    mark: str,
) -> None:
    """Tune every method on the first factor, then train it on each factor with each seed, and print the table.

    The table of the published results is also written to the docs, at a mark.
    """
    chosen = {}
    for method, (fixed, grid) in methods.items():
        chosen[method] = tune(study, method, fixed, grid, factors[0])
    for seed in range(seeds):  # seed by seed, so that a part of it is already a comparison
        for factor in factors:
            for method, (fixed, _) in methods.items():
                final(study, method, fixed, *chosen[method], factor, seed)
        if study.results.parent == RESULTS:
            write_between(PAGE, f"<!-- {mark} -->", f"<!-- end of {mark} -->", f"\n{summary(study.results, BASE)}\n")
    print(summary(study.results, BASE))
