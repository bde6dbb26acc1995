"""Errors on corrupted images of cross entropy, balanced softmax and GPaCo, by group of classes, plain and strong views.

    python benchmarks/robustness.py CIFAR --out DIR [--views strong] [--seeds 2]

CIFAR-100-LT with imbalance factor 100, an 8-layer ResNet, 15 epochs. `compare` trains the methods into DIR, one seed of
all before the next, and `robustness` tests them on 2,000 test images under 75 conditions. A line for each method, seed
and group is added to benchmarks/results/robustness.csv as soon as it is known; the same command resumes where it
stopped. At the end it prints a table of docs/robustness.md: means over seeds with half of the 95% interval. About 100
minutes of one core for three seeds.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from table import append, has, read, with_interval

import gpaco
from gpaco.cli.display import display
from gpaco.data.corruption.corruptions import CORRUPTIONS

RESULTS = Path(__file__).parent / "results" / "robustness.csv"
GROUPS = ("all", "many", "medium", "few")
FIGURES = ("clean_error", "mean_error")
METHODS = {
    "ce": "cross entropy",
    "balanced-softmax": "balanced softmax",
    "gpaco+alpha=0.01+temperature=0.07+memory=1024": "GPaCo, balanced start, unbiased prior",
}
VIEWS = {"plain": ("plain", "plain"), "strong": ("cifar_regular", "cifar_aug")}
COMMON = ("data.validation=0", "train.report=false")


def rows_of(result: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Of each group: clean error, mean error, and the mean over severities of each corruption."""
    rows = {}
    for group in GROUPS:
        own = result if group == "all" else result["groups"][group]
        key = "error" if group == "all" else group
        rows[group] = {figure: own[figure] for figure in FIGURES}
        rows[group] |= {name: result["corruptions"][name]["mean"][key] for name in CORRUPTIONS}
    return rows


def table(views: str) -> str:
    """Clean and mean error of each method by group, in percent."""
    lines = [line for line in read(RESULTS) if line["views"] == views]
    out = [f"| method | {' | '.join(f'{g}, clean | {g}, corrupted' for g in GROUPS)} |", "|---" * 9 + "|"]
    for method, name in METHODS.items():
        cells = []
        for group in GROUPS:
            for figure in FIGURES:
                values = [line[figure] for line in lines if line["method"] == method and line["group"] == group]
                cells.append(with_interval([float(value) if value else None for value in values], none="none"))
        out.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="the folder cifar-100-python, or the one above it")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--views", choices=VIEWS, default="plain")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    first, second = VIEWS[options.views]
    for seed in range(options.seeds):
        comparison = gpaco.compare(
            options.data,
            list(METHODS),
            seeds=seed + 1,
            out=options.out / options.views,
            long_tail=100,
            model="resnet8",
            epochs=15,
            settings=[*COMMON, f"views.first={first}", f"views.second={second}"],
        )
        for row in comparison["rows"]:
            own = {"dataset": "cifar100-lt100", "model": "resnet8", "epochs": 15, "views": options.views}
            own |= {"method": row["method"], "seed": seed}
            missing = [group for group in GROUPS if not has(RESULTS, own | {"group": group})]
            if not missing:
                continue
            result = gpaco.robustness(row["runs"][seed], subset=2000, say=print, bar=display().working)
            for group in missing:
                figures = rows_of(result)[group]
                rounded = {key: "" if value is None else round(value, 6) for key, value in figures.items()}
                append(RESULTS, {**own, "group": group, **rounded})
    print(table(options.views))


if __name__ == "__main__":
    main()
