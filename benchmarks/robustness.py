"""Errors on corrupted images of cross entropy, balanced softmax and GPaCo, by group of classes, three seeds each.

    python benchmarks/robustness.py DATA --out DIR [--long-tail 100] [--model resnet8] [--epochs 15] [--subset 2000]
        [--set section.key=value ...]

DATA is CIFAR-100 or Fashion-MNIST, made long-tailed. Methods are trained by `compare` into DIR, one seed of all before
the next, and tested by `robustness` on the 75 conditions. A line for each method, seed and group is added to
benchmarks/results/robustness.csv as soon as it is known; the same command resumes where it stopped. At the end, the
table of docs/robustness.md: means over seeds with half of the 95% interval.
"""

import argparse
from pathlib import Path
from typing import Any

from table import append, has, read, with_interval

import gpaco
from gpaco.cli.display import display
from gpaco.data.corruption.corruptions import CORRUPTIONS

GROUPS = ("all", "many", "medium", "few")
FIGURES = ("clean_error", "mean_error")


def rows_of(result: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Of each group: clean error, mean error, and the mean over severities of each corruption."""
    rows = {}
    for group in GROUPS:
        own = result if group == "all" else result["groups"][group]
        key = "error" if group == "all" else group
        rows[group] = {figure: own[figure] for figure in FIGURES}
        rows[group] |= {name: result["corruptions"][name]["mean"][key] for name in CORRUPTIONS}
    return rows


def table(lines: list[dict[str, str]], what: dict[str, str]) -> str:
    """Clean and mean error of each method by group, in percent."""
    chosen = [line for line in lines if all(line[key] == value for key, value in what.items())]
    out = [f"| method | {' | '.join(f'{g}, clean | {g}, corrupted' for g in GROUPS)} |", "|---" * 9 + "|"]
    for method in dict.fromkeys(line["method"] for line in chosen):
        cells = []
        for group in GROUPS:
            for figure in FIGURES:
                values = [line[figure] for line in chosen if line["method"] == method and line["group"] == group]
                cells.append(with_interval([float(value) if value else None for value in values], none="none"))
        out.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--methods", default="ce,balanced-softmax,gpaco")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--long-tail", type=float, default=100)
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--set", action="append", default=[], dest="settings", help="any setting, for all methods")
    parser.add_argument("--subset", type=int, default=2000, help="test images, the same for all")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    file = options.results / "robustness.csv"
    what = {
        "data": Path(options.data).name,
        "long_tail": f"{options.long_tail:g}",
        "model": options.model,
        "epochs": str(options.epochs),
        "subset": str(options.subset),
    }
    methods = options.methods.split(",")
    for seed in range(options.seeds):
        comparison = gpaco.compare(
            options.data,
            methods,
            seeds=seed + 1,
            out=options.out,
            long_tail=options.long_tail,
            model=options.model,
            epochs=options.epochs,
            settings=options.settings,
        )
        for row in comparison["rows"]:
            own = what | {"method": row["method"], "seed": str(seed)}
            missing = [group for group in GROUPS if not has(file, own | {"group": group})]
            if not missing:
                continue
            result = gpaco.robustness(
                row["runs"][seed],
                subset=options.subset,
                say=print,
                bar=display().working,
            )
            for group in missing:
                figures = rows_of(result)[group]
                rounded = {key: "" if value is None else round(value, 6) for key, value in figures.items()}
                append(file, {**own, "group": group, **rounded})
    print(table(read(file), what))


if __name__ == "__main__":
    main()
