"""gpaco mine on CIFAR-100-LT: are its candidates of the classes they are offered for, and what does labeling them give?

    python benchmarks/mine.py --cifar CIFAR --out DIR [--method gaussian] [--n 200] [--seeds 3]

CIFAR is the folder cifar-100-python. The training images left out of the long tail (factor 100) are the pool. Images
are features of EfficientNet-Lite0, computed once and kept in DIR (those of benchmarks/estimator.py). A model of the
long tail chooses `n` images of the pool in five ways:

    mine           as `gpaco mine` does: probable for a few-shot class under a uniform prior, and different
    probable       the most probable for a few-shot class under a uniform prior
    train prior    as mine, under the class distribution of training
    uncertainty    the smallest difference between the two most probable classes; for the most probable few-shot one
    random         any image for any few-shot class

`share` is the share of the candidates offered for a few-shot class that are of it, averaged over these classes.
`few_before` and `few` are the recalls of these classes on test images before and after the candidates, with their true
classes, join the training data, `all_before` and `all` those of all classes. Rows are added to
benchmarks/results/mine.csv as they come. Rerun the same command to resume.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from estimator import PAGE, features
from numpy.typing import NDArray
from table import append, has, spread, write_between
from table import read as rows_of

from gpaco import TailClassifier
from gpaco.data.longtail import long_tailed
from gpaco.data.readers.read import read
from gpaco.metrics.groups import groups
from gpaco.tasks.classification.mining import Pool, candidates

Ints = NDArray[np.int64]
RESULTS = Path(__file__).parent / "results" / "mine.csv"
WAYS = ("mine", "probable", "train prior", "uncertainty", "random")


def chosen(
    way: str, model: TailClassifier, vectors: NDArray[np.float32], few: Ints, n: int, seed: int
) -> tuple[Ints, Ints]:
    """Return the chosen rows of the pool and the class that each is offered for."""
    if way in ("mine", "train prior"):
        shares = model.predict_proba(vectors, prior="train" if way == "train prior" else "uniform")
        found = candidates(Pool(np.log(np.maximum(shares, 1e-30)).astype(np.float32), vectors), few.tolist(), n)
        return np.array([one.image for one in found]), np.array([one.label for one in found])
    if way == "probable":
        each = model.predict_proba(vectors, prior="uniform")[:, few]
        most = np.argsort(-each, axis=0, kind="stable")[: n // len(few)]
        return most.T.flatten(), np.repeat(few, len(most))
    if way == "random":
        draw = np.random.default_rng(seed)
        return draw.permutation(len(vectors))[:n], draw.choice(few, n)
    shares = model.predict_proba(vectors)
    best = np.sort(shares, 1)
    rows = np.argsort(best[:, -1] - best[:, -2], kind="stable")[:n]
    return rows, few[shares[rows][:, few].argmax(1)]


def recalls(model: TailClassifier, vectors: NDArray[np.float32], labels: Ints, few: Ints) -> tuple[float, float]:
    """Return the mean recall of the few-shot classes, and of all classes."""
    answers = model.predict(vectors)
    found = np.array([(answers[labels == c] == c).mean() for c in range(100)])
    return float(found[few].mean()), float(found.mean())


def study(seed: int, options: argparse.Namespace) -> None:
    key = {"method": options.method, "n": options.n, "seed": seed}
    ways = [way for way in WAYS if not has(options.results, {**key, "way": way})]
    if not ways:
        return
    splits = read(options.cifar)
    test = dict(splits.parts())["test"]
    every = features(splits.train, 96, options.out / "cifar-train.npy")
    tested = features(test, 96, options.out / "cifar-test.npy")
    rows = long_tailed(splits.train.labels, 100, seed=seed)
    rest = np.setdiff1d(np.arange(len(every)), rows)
    labels = splits.train.labels
    few = np.flatnonzero(groups(np.bincount(labels[rows])) == "few")

    def fit(own: Ints) -> TailClassifier:
        return TailClassifier(options.method, random_state=seed).fit(every[own], labels[own])

    model = fit(rows)
    before = recalls(model, tested, test.labels, few)
    for way in ways:
        images, offered = chosen(way, model, every[rest], few, options.n, seed)
        right = labels[rest][images] == offered
        share = np.mean([right[offered == c].mean() if (offered == c).any() else 0.0 for c in few])
        after = recalls(fit(np.concatenate([rows, rest[images]])), tested, test.labels, few)
        figures = {"share": share, "few_before": before[0], "few": after[0], "all_before": before[1], "all": after[1]}
        row = {**key, "way": way, **{name: f"{value:.4f}" for name, value in figures.items()}}
        append(options.results, row)
        print(row, flush=True)


def table() -> str:
    """The table of docs/benchmarks.md: mean and standard deviation over the seeds that are there."""
    names = ("share", "few_before", "few", "all_before", "all")
    lines = ["| way | seeds | share | few-shot before | after | all before | after |", "|---" * 7 + "|"]
    rows = rows_of(RESULTS)
    for way in WAYS:
        cell = [row for row in rows if (row["method"], row["n"], row["way"]) == ("gaussian", "200", way)]
        if cell:
            numbers = [spread([row[name] for row in cell]) for name in names]
            lines.append(f"| {way} | {len(cell)} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--method", default="gaussian")
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(2)
    for seed in range(options.seeds):
        study(seed, options)
        if (options.results, options.method, options.n) == (RESULTS, "gaussian", 200):
            write_between(PAGE, "<!-- mining -->", "<!-- end of mining -->", f"\n{table()}\n")


if __name__ == "__main__":
    main()
