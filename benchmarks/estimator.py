"""TailClassifier against the usual classifiers of vectors, on five real long-tailed sets.

    python benchmarks/estimator.py --cifar CIFAR --pets PETS --fashion FASHION --out DIR [--seeds 3] [--sets ...]
        [--methods ...]

CIFAR is the folder cifar-100-python with coarse labels in its pickles, PETS a folder with train and test, FASHION the
folder of the idx files of Fashion-MNIST. Features are those of EfficientNet-Lite0, computed once and kept in DIR.

    digits     scikit-learn's digits, 64 pixels, a long tail of factor 50
    pets       features of pets, long-tailed as they are
    fashion    784 pixels, at most 1,000 images of a class, a long tail of factor 100
    cifar20    features of CIFAR-100-LT, factor 100, with its 20 coarse labels
    cifar100   the same images with their 100 fine labels

Every method may choose among four settings by macro recall on 30% of the training vectors, held out class by class;
then it trains on all of them. Test data select nothing. The seed draws the long tail, the held-out part and the random
numbers of the method. Macro recall, recall of the rarest third of the classes, expected calibration error and seconds
of the last fit are added to benchmarks/results/estimator.csv as they come, and the table of docs/benchmarks.md is
written. Rerun the same command to resume.
"""

import argparse
import pickle
import time
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from imblearn.ensemble import BalancedBaggingClassifier
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from table import append, has, read, spread, write_between

from gpaco import TailClassifier
from gpaco.data.holdout import stratified_split
from gpaco.data.longtail import long_tailed
from gpaco.data.readers.read import read as read_data
from gpaco.data.samples import Samples
from gpaco.data.views.eval import images_as_tested
from gpaco.data.views.tested import TestView
from gpaco.data.views.views import normalize
from gpaco.metrics.classification import ece
from gpaco.models import backbones

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Split = tuple[Floats, Ints]
FIGURES = ("macro", "rarest_third", "ece", "seconds")
BACKBONE = "tf_efficientnet_lite0"
RESULTS = Path(__file__).parent / "results" / "estimator.csv"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def features(samples: Samples, size: int, path: Path) -> Floats:
    """Return the features (N, 1280) of images, computed once."""
    if not path.is_file():
        network = backbones.build(BACKBONE, size=size, weights="package").module
        mean, std, _ = backbones.usual_input(BACKBONE)
        network.eval()
        view = TestView(size, round(size / 0.875), samples.images is not None, "bilinear")
        chunks = np.split(np.arange(len(samples)), range(32, len(samples), 32))
        with torch.inference_mode():
            parts = [network(normalize(pixels, mean, std)) for pixels in images_as_tested(samples, view, chunks)]
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, torch.cat(parts).half().numpy())
    stored: NDArray[np.float32] = np.load(path).astype(np.float32)
    return stored


def digits(seed: int, options: argparse.Namespace) -> tuple[Split, Split]:
    values, labels = load_digits(return_X_y=True)
    rest, held = stratified_split(labels, 0.3, seed=0)
    return tail(values[rest], labels[rest], 50, seed), (values[held].astype(np.float32), labels[held])


def pets(seed: int, options: argparse.Namespace) -> tuple[Split, Split]:
    splits = read_data(options.pets)
    parts = {
        name: (features(part, 224, options.out / f"pets-{name}.npy"), part.labels) for name, part in splits.parts()
    }
    return parts["train"], parts["test"]


def fashion(seed: int, options: argparse.Namespace) -> tuple[Split, Split]:
    splits = read_data(options.fashion)
    parts = {
        name: (np.asarray(part.images)[..., 0].reshape(len(part), -1), part.labels) for name, part in splits.parts()
    }
    pixels, labels = parts["train"]
    chosen = np.concatenate([np.flatnonzero(labels == c)[:1000] for c in range(10)])
    return tail(pixels[chosen], labels[chosen], 100, seed), (parts["test"][0].astype(np.float32), parts["test"][1])


def cifar100(seed: int, options: argparse.Namespace) -> tuple[Split, Split]:
    splits = read_data(options.cifar)
    parts = {name: features(part, 96, options.out / f"cifar-{name}.npy") for name, part in splits.parts()}
    test = dict(splits.parts())["test"]
    return tail(parts["train"], splits.train.labels, 100, seed), (parts["test"], test.labels)


def cifar20(seed: int, options: argparse.Namespace) -> tuple[Split, Split]:
    (vectors, fine), (tested, labels) = cifar100(seed, options)
    with (Path(options.cifar) / "test").open("rb") as file:
        stored = pickle.load(file, encoding="latin1")  # noqa: S301 - the published file
    coarse = np.zeros(100, np.int64)
    coarse[stored["fine_labels"]] = stored["coarse_labels"]
    return (vectors, coarse[fine]), (tested, coarse[labels])


def tail(vectors: NDArray[Any], labels: Ints, factor: float, seed: int) -> Split:
    rows = long_tailed(labels, factor, seed=seed)
    return vectors[rows].astype(np.float32), labels[rows]


SETS: dict[str, Callable[[int, argparse.Namespace], tuple[Split, Split]]] = {
    "digits": digits,
    "pets": pets,
    "fashion": fashion,
    "cifar20": cifar20,
    "cifar100": cifar100,
}


def pipeline(model: Any) -> Pipeline:
    return Pipeline([("scale", StandardScaler()), ("model", model)])


def methods(seed: int) -> dict[str, tuple[Pipeline, dict[str, list[Any]]]]:
    """Return each method and the four settings it may choose among."""
    linear = LogisticRegression(class_weight="balanced", max_iter=300)
    scales = [StandardScaler(), Normalizer()]
    return {
        "nearest class mean": (
            pipeline(NearestCentroid()),
            {"scale": scales, "model__metric": ["euclidean", "manhattan"]},
        ),
        "TailClassifier": (
            Pipeline([("scale", "passthrough"), ("model", TailClassifier(random_state=seed))]),
            {"model__hidden": [0, 512], "model__weight_decay": [5e-4, 5e-3]},
        ),
        "LogisticRegression": (pipeline(linear), {"model__C": [1e-3, 3e-2, 1.0, 30.0]}),
        "LinearSVC": (
            pipeline(LinearSVC(class_weight="balanced", dual=True, tol=0.01, max_iter=100, random_state=seed)),
            {"model__C": [1e-5, 3e-4, 1e-2, 3e-1]},
        ),
        "balanced bagging": (
            pipeline(BalancedBaggingClassifier(random_state=seed)),
            {
                "model__estimator": [DecisionTreeClassifier(), LogisticRegression(max_iter=300)],
                "model__n_estimators": [10, 50],
            },
        ),
    }


def measure(model: Any, train: Split, test: Split) -> dict[str, float | None]:
    """Macro recall, recall of the rarest third of the classes, and calibration error."""
    vectors, labels = test
    answers = model.predict(vectors)
    counts = np.bincount(train[1])
    recalls = np.array([(answers[labels == c] == c).mean() for c in range(len(counts))])
    rarest = np.argsort(counts, kind="stable")[: len(counts) // 3]
    error = None
    if hasattr(model, "predict_proba"):
        error = ece(model.predict_proba(vectors).max(1), answers == labels)
    return {"macro": float(recalls.mean()), "rarest_third": float(recalls[rarest].mean()), "ece": error}


def compare(name: str, seed: int, options: argparse.Namespace) -> None:
    train, test = SETS[name](seed, options)
    _, held = stratified_split(train[1], 0.3, seed, smallest=2)
    folds = np.full(len(train[1]), -1)
    folds[held] = 0
    for method, (model, grid) in methods(seed).items():
        key = {"set": name, "method": method, "seed": seed}
        if method not in options.methods or has(options.results, key):
            continue
        began = time.perf_counter()
        search = GridSearchCV(model, grid, scoring="balanced_accuracy", cv=PredefinedSplit(folds), refit=False)
        search.fit(*train)
        tuned = time.perf_counter()
        model.set_params(**search.best_params_).fit(*train)
        seconds = time.perf_counter() - tuned
        found = measure(model, train, test) | {"seconds": seconds}
        chosen = " ".join(f"{key.split('__')[-1]}={value}" for key, value in search.best_params_.items())
        row = {**key, "settings": " ".join(chosen.split())}
        row |= {key: "" if found[key] is None else f"{found[key]:.4f}" for key in FIGURES}
        row |= {"tuning_seconds": f"{tuned - began:.1f}"}
        append(options.results, row)
        print(row, flush=True)


def table(results: Path) -> str:
    """The table of docs/benchmarks.md: mean and standard deviation over the seeds that are there."""
    rows = read(results)
    lines = ["| vectors | method | seeds | macro recall | rarest third | calibration error |", "|---" * 6 + "|"]
    for name, method in product(SETS, methods(0)):
        cell = [row for row in rows if (row["set"], row["method"]) == (name, method)]
        if cell:
            numbers = [spread([row[key] for row in cell]) for key in ("macro", "rarest_third", "ece")]
            lines.append(f"| {name} | {method} | {len(cell)} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("cifar", "pets", "fashion"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--methods", nargs="+", choices=methods(0), default=list(methods(0)))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)  # a class that is not among the held-out vectors
    warnings.filterwarnings("ignore", message=".*failed to converge.*")
    for seed in range(options.seeds):
        for name in options.sets:
            compare(name, seed, options)
            if options.results == RESULTS:
                write_between(PAGE, "<!-- vectors -->", "<!-- end of vectors -->", f"\n{table(RESULTS)}\n")


if __name__ == "__main__":
    main()
