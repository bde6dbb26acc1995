"""The first model of a new user: `gpaco train DATA` with its defaults, against what they would do otherwise.

    python benchmarks/first_model.py DATA --out DIR [--name NAME] [--long-tail 100] [--weights package] [--seeds 3]

    gpaco                  the default command, with its own time: reading, embedding, training, calibration, report
    logistic-regression    scikit-learn's LogisticRegression(class_weight="balanced") on the same features, C and
                           the scaling chosen by GridSearchCV (5 folds, balanced accuracy)
    nearest-class-mean     cosine to the class means of the same features
                           (ece_fitted: the calibration error of these two after one temperature, fitted on held-out
                           training images as gpaco does)
    fine-tuning            torchvision's usual recipe: the same backbone and weights, all layers, SGD with a cosine
                           rate, random resized crops, for as many minutes as gpaco took

Times are seconds of one processor, loaders included, so that other work on the machine hardly counts; use
OMP_NUM_THREADS=1. Later seeds of gpaco find the features of the first; fine-tuning always gets the time of the first.
The fixed methods use the same features, so embedding (most of gpaco's time) is not in their seconds. Rows are added to
benchmarks/results/first_model.csv. Rerun the same command to resume.
"""

import argparse
import math
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from table import append, read
from torch.nn import functional as F

import gpaco
from gpaco.data.batches import batches
from gpaco.data.holdout import stratified_folds
from gpaco.data.samples import Samples
from gpaco.data.views.views import View
from gpaco.metrics.calibration import balanced_weights, fit_factor
from gpaco.metrics.classification import summarize
from gpaco.recipes import recipe as recipes
from gpaco.recipes.validation import SETTINGS
from gpaco.tasks.classification.batches import FeatureSource
from gpaco.tasks.classification.card import build_model, describe
from gpaco.tasks.classification.evaluation import logits_of
from gpaco.tasks.classification.predictor import Predictor
from gpaco.tasks.classification.task import Classification
from gpaco.training.run import Run

FIGURES = ("top1", "many", "medium", "few", "macro", "ece")
CPU = torch.device("cpu")


def processor_seconds() -> float:
    """Processor time of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def train_default(options: argparse.Namespace, seed: int) -> tuple[Run, float]:
    """Return the run of the default command and its seconds."""
    folder = options.out / f"gpaco-{seed}"
    clock = folder / "seconds.txt"
    if not clock.is_file():
        began = processor_seconds()
        given: dict[str, Any] = {"seed": seed, "weights": options.weights}
        if options.long_tail:
            given["long_tail"] = options.long_tail
        settings = ["data.allow_leakage=true", f"train.features={options.out / 'features'}"]
        gpaco.train(options.data, out=folder, settings=settings, **given)
        clock.write_text(f"{processor_seconds() - began:.1f}")
    return Run(folder), float(clock.read_text())


def features(run: Run, out: Path) -> tuple[Any, Any, Any, Any]:
    """Return features and labels of the training and test images, from the cache of the run."""
    recipe = run.recipe
    (out / "none").mkdir(exist_ok=True)
    task = Classification.prepare(recipe, set(SETTINGS), out / "none", CPU, lambda line: None)
    learner = task.begin(recipes.stages(task.recipe)[-1], out / "none", None)
    source = learner.source
    if not isinstance(source, FeatureSource):
        raise TypeError("the default command did not cache features")
    test = task.splits.test
    if test is None:
        raise SystemExit("there is no test split")

    def of(samples: Samples) -> Any:
        found, rows = source.tested(samples), np.arange(len(samples))
        return found.take(rows, np.zeros_like(rows)).numpy()

    return of(task.splits.train), task.splits.train.labels, of(test), test.labels


Fit = Callable[[Any, Any], Callable[[Any], Any]]  # features and labels -> (features -> logits)


def logistic_regression(x: Any, y: Any) -> tuple[Fit, str]:
    """Return how to fit it, with the settings that cross-validation on these images chose."""
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Normalizer, StandardScaler

    many = len(y) > 5000  # where a fit takes minutes: a smaller grid, two folds
    model = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=100 if many else 1000))
    scaled, unit = ([1e-3, 1e-2], [10.0]) if many else ([1e-4, 1e-3, 1e-2, 0.1], [0.01, 0.1, 1.0, 10.0, 100.0])
    grid = [
        {"standardscaler": [StandardScaler()], "logisticregression__C": scaled},
        {"standardscaler": [Normalizer()], "logisticregression__C": unit},
    ]
    search = GridSearchCV(model, grid, scoring="balanced_accuracy", cv=2 if many else 5).fit(x, y)
    best = search.best_estimator_
    return lambda x, y: clone(best).fit(x, y).predict_log_proba, str(search.best_params_)


def nearest_class_mean(x: Any, y: Any) -> Callable[[Any], Any]:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    means = np.stack([unit[y == c].mean(0) for c in range(y.max() + 1)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return lambda test: 20 * (test / np.linalg.norm(test, axis=1, keepdims=True)) @ means.T


def fitted_factor(fit: Fit, x: Any, y: Any) -> float:
    """Return the factor on the logits that suits held-out training images: one temperature, every class the same."""
    folds = stratified_folds(y, 5, seed=0)
    held = [np.flatnonzero(folds == k) for k in range(5 if len(y) < 5000 else 1)]
    logits = [fit(x[folds != k], y[folds != k])(x[rows]) for k, rows in enumerate(held)]
    own = y[np.concatenate(held)]
    return fit_factor(np.concatenate(logits), own, balanced_weights(own, int(y.max()) + 1))


def fine_tuning(run: Run, seconds: float, seed: int) -> tuple[Any, str]:
    """Train all layers for about as long as the default command took; the first steps tell how many epochs fit."""
    recipe = recipes.fill(run.recipe, {"method.name": "ce", "train.part": "all", "model.hidden": 0})
    task = Classification.prepare(recipe, set(SETTINGS), Path("none"), CPU, lambda line: None)
    train, test = task.splits.train, task.splits.test
    if test is None:
        raise SystemExit("there is no test split")
    torch.manual_seed(seed)
    card = describe(recipe, task.splits)
    model = build_model(card, recipe.model.weights).to(memory_format=torch.channels_last)
    rate, size = 0.01, 32
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    steps = math.ceil(len(train) / size)
    began, done, total = processor_seconds(), 0, 10**9
    view = View("plain", recipe.model.size, (0.08, 1.0))
    epoch = 0
    while done < total:
        shown = batches(
            train, [view], epoch=epoch, start=0, mean=card.mean, std=card.std, workers=0, batch_size=size, seed=seed
        )
        for batch in shown:
            for group in optimizer.param_groups:
                group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * min(done / total, 1)))
            optimizer.zero_grad()
            logits, _ = model.train()(batch.views[0].contiguous(memory_format=torch.channels_last))
            F.cross_entropy(logits, batch.labels).backward()
            optimizer.step()
            done += 1
            if done == 5:
                total = max(int(seconds / ((processor_seconds() - began) / 5)), steps)
            if done >= total:
                break
        epoch += 1
    return logits_of(Predictor(model.eval(), card).eval(), test), f"{done / steps:.1f} epochs, lr {rate}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, default=Path("first_model"))
    parser.add_argument("--name")
    parser.add_argument("--long-tail", type=float, default=0)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "first_model.csv")
    parser.add_argument("--budget", type=float, help="seconds of fine-tuning, if features were there already")
    parser.add_argument("--methods", nargs="+", default=["logistic-regression", "nearest-class-mean", "fine-tuning"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    name = options.name or Path(options.data).name
    known = {(row["dataset"], row["method"], row["seed"]) for row in read(options.results)}

    def add(method: str, seed: int, metrics: dict[str, Any], seconds: float, settings: str = "") -> None:
        row = {"dataset": name, "method": method, "seed": str(seed), "seconds": f"{seconds:.0f}", "settings": settings}
        row |= {key: "" if metrics.get(key) is None else f"{metrics[key]:.4f}" for key in (*FIGURES, "ece_fitted")}
        append(options.results, row)
        print({key: row[key] for key in ("dataset", "method", "seed", "top1", "few", "ece", "seconds")}, flush=True)

    for seed in range(options.seeds):
        seeded = {("gpaco", str(seed)), *[("fine-tuning", str(seed))] * ("fine-tuning" in options.methods)}
        fixed = {(method, "0") for method in options.methods if method != "fine-tuning" and seed == options.seeds - 1}
        if seeded | fixed <= {(method, one) for data, method, one in known if data == name}:
            continue
        run, seconds = train_default(options, seed)
        metrics = run.metrics
        if (name, "gpaco", str(seed)) not in known:
            add("gpaco", seed, metrics, seconds)
            for part, figures in metrics["parts"].items():
                add(f"gpaco, {part}", seed, figures, seconds)
        classes = [row["name"] for row in metrics["per_class"]]
        for method in ("logistic-regression", "nearest-class-mean"):
            if (name, method, "0") not in known and method in options.methods:
                x, y, test, labels = features(run, options.out)
                began = processor_seconds()
                fit, words = logistic_regression(x, y) if method == "logistic-regression" else (nearest_class_mean, "")
                logits = fit(x, y)(test)
                taken = processor_seconds() - began
                calibrated = fitted_factor(fit, x, y) * logits
                fitted = summarize(calibrated, labels, metrics["counts"], classes)["ece"]
                found = summarize(logits, labels, metrics["counts"], classes) | {"ece_fitted": fitted}
                add(method, 0, found, taken, words)
                known.add((name, method, "0"))
        if (name, "fine-tuning", str(seed)) not in known and "fine-tuning" in options.methods:
            labels = np.load(run.folder / "predictions.npz")["labels"]
            began = processor_seconds()
            times = {
                (row["dataset"], row["method"], row["seed"]): float(row["seconds"]) for row in read(options.results)
            }
            logits, words = fine_tuning(run, options.budget or times[name, "gpaco", "0"], seed)
            taken = processor_seconds() - began
            add("fine-tuning", seed, summarize(logits, labels, metrics["counts"], classes), taken, words)


if __name__ == "__main__":
    main()
