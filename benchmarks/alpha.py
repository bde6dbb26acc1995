"""Which alpha? Macro recall of GPaCo on held-out training images, for data with few and with many classes.

    python benchmarks/alpha.py DATA --name NAME --out DIR [--alphas 0.005 0.01 0.02 0.05] [--seeds 2] [--set K=V ...]

DATA is anything that `gpaco train` reads. 30% of its training images are held out class by class; the test images are
not used. Balanced softmax is trained in the same way for comparison. A positive has weight alpha beside the center of
its class, so the share of a center at the optimum is 1 / (1 + alpha P): the column `share` has it for the most frequent
class, whose anchors have P positives in batch and memory. Rows are added to benchmarks/results/alpha.csv as they come.
Rerun the same command to resume.
"""

import argparse
import sys
from pathlib import Path

import torch
from table import append, has

import gpaco
from gpaco.analysis import optimal_probabilities
from gpaco.cli.display import Display

RESULTS = Path(__file__).parent / "results" / "alpha.csv"
FIGURES = ("macro", "top1", "many", "medium", "few")


def measure(options: argparse.Namespace, alpha: float | None, seed: int) -> None:
    """Train GPaCo with an alpha, or balanced softmax without one, and write the row."""
    method = "balanced-softmax" if alpha is None else "gpaco"
    key = {"dataset": options.name, "method": method, "alpha": "" if alpha is None else alpha, "seed": seed}
    if has(RESULTS, key):
        return
    folder = options.out / options.name / f"{method}-{key['alpha']}" / f"seed-{seed}"
    print(folder, flush=True)
    run = gpaco.train(
        options.data,
        out=folder,
        method=method,
        seed=seed,
        validation=0.3,
        settings=[
            *("data.evaluate_on=val", "data.allow_leakage=true", "train.select=last", "train.report=false"),
            f"train.features={options.out / options.name / 'features'}",
            *options.settings,
            *([] if alpha is None else [f"method.alpha={alpha}"]),
        ],
        say=lambda line: None,
        show=Display(sys.stdout).show,
    )
    found, recipe = run.metrics, run.recipe
    row = {**key, "settings": " ".join(options.settings), "memory": "", "share": ""}
    if alpha is not None:
        known = {"memory": recipe.method.memory, "batch": recipe.train.batch_size}
        center = optimal_probabilities(found["counts"], alpha=alpha, **known).center
        row |= {"memory": recipe.method.memory, "share": round(float(center.min()), 3)}
    append(RESULTS, row | {name: "" if found[name] is None else round(found[name], 4) for name in FIGURES})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.005, 0.01, 0.02, 0.05])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(options.seeds):
        for alpha in (None, *options.alphas):
            measure(options, alpha, seed)


if __name__ == "__main__":
    main()
