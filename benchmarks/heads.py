"""Heads on cached features: which settings, and what do the closed form and the sum of both add?

    python benchmarks/heads.py DATA --out DIR [--name NAME] [--size 96] [--long-tail 100] [--seeds 3]
    python benchmarks/heads.py DATA --out DIR --epochs 10 20 60 [--set KEY=VALUE] [--name NAME] [--size 96] ...

DATA is anything that `gpaco train` reads. It is embedded once by EfficientNet-Lite0. Then

    gaussian               the closed-form classifier for several k, without and with the term for the noise of means,
                           and the leave-one-fold-out cross entropy by which k is chosen
    balanced-softmax, gpaco, gpaco+counts    heads with the default settings: alone, and added to the closed form
    --epochs 10 20 60      nothing but these lengths of training, on held-out training images: the column `images`
    --set KEY=VALUE        with --epochs: another rate, width, weight decay; may be repeated

Rows are added to benchmarks/results/heads.csv as they come. Rerun the same command to resume. Nothing is chosen on test
data: the table shows all that was tried.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from table import append, has

from gpaco.data.holdout import stratified_folds
from gpaco.data.samples import Samples
from gpaco.metrics.calibration import balanced_weights, cross_entropy, fit_factor
from gpaco.metrics.classification import summarize
from gpaco.models.gaussian import Gaussian, fit_gaussian
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification.batches import FeatureSource
from gpaco.tasks.classification.calibration import fit_calibration
from gpaco.tasks.classification.card import Card, describe
from gpaco.tasks.classification.heads import HeldOut, closed_form, fit_head, held_out_logits, without_small_classes
from gpaco.tasks.classification.learner import ClassificationLearner, Earlier
from gpaco.tasks.classification.task import Classification
from gpaco.tasks.classification.tuning import used_logits

FIGURES = ("top1", "many", "medium", "few", "macro", "ece")
METHODS = {
    "balanced-softmax": {"method.name": "balanced-softmax"},
    "gpaco": {"method.name": "gpaco"},
    "gpaco+counts": {"method.name": "gpaco", "method.prior": "counts"},
}
CPU = torch.device("cpu")


class Study:
    """A data set with its features, and the rows that are known."""

    def __init__(
        self,
        data: str,
        name: str,
        size: int,
        long_tail: float,
        out: Path,
        results: Path,
        changes: dict[str, Any] | None = None,
    ) -> None:
        values: dict[str, Any] = {"data.path": data, "data.long_tail": long_tail, "model.weights": "auto"}
        values |= {"data.allow_leakage": True, "train.features": str(out / "features"), "train.part": "head"}
        values |= ({"model.size": size} if size else {}) | (changes or {})
        recipe = recipes.change(Recipe(), values)
        (out / name).mkdir(parents=True, exist_ok=True)
        self.task = Classification.prepare(recipe, set(values), out, CPU, print)
        (self.stage,) = recipes.stages(self.task.recipe)
        learner = self.task.begin(self.stage, out / name, None)
        if not isinstance(learner.source, FeatureSource):
            raise TypeError("only heads on cached features")
        self.source, self.learner, self.name, self.results = learner.source, learner, name, results
        test = self.task.splits.reported("auto")[1]
        if test is None:
            raise SystemExit("there is no test split")
        self.test: Samples = test

    def has(self, method: str, settings: str, seed: int) -> bool:
        return has(self.results, {"dataset": self.name, "method": method, "settings": settings, "seed": seed})

    def add(
        self, method: str, settings: str, seed: int, logits: Any, held_out: float, seconds: float, labels: Any = None
    ) -> None:
        """Add a row about the test images, or about held-out training images with these labels."""
        card = self.learner.card
        truth = self.test.labels if labels is None else labels
        found = summarize(logits, truth, card.counts, card.classes, many=card.many, few=card.few)
        row = {"dataset": self.name, "method": method, "settings": settings, "seed": str(seed)}
        row |= {"images": "test" if labels is None else "held-out training"}
        row |= {key: "" if found[key] is None else f"{found[key]:.4f}" for key in FIGURES}
        row |= {"held_out": f"{held_out:.4f}", "seconds": f"{seconds:.1f}"}
        append(self.results, row)
        print(
            {key: row[key] for key in ("method", "settings", "seed", "top1", "macro", "few", "ece", "held_out")},
            flush=True,
        )


def closed_forms(study: Study) -> None:
    """The closed form for several k, with and without its last term; `held_out` is the balanced cross entropy."""
    source, classes = study.source, len(study.task.splits.classes)
    labels = source.labels
    folds = stratified_folds(labels, 5, seed=0)
    for k in (0.3, 1.0, 3.0, 10.0, 30.0):
        for term in (True, False):
            settings = f"k={k:g}" + ("" if term else " without the term")
            if study.has("gaussian", settings, 0):
                continue
            began = time.perf_counter()

            def fitted(part: FeatureSource, k: float = k, term: bool = term) -> Gaussian:
                return fit_gaussian(part.as_tested, part.frozen.width, classes, shrinkage=k, corrected=term)

            model = fitted(source)
            seconds = time.perf_counter() - began
            held, own = [], []
            for number in range(5):
                rows = np.flatnonzero(folds == number)
                part = fitted(source.subset(np.flatnonzero(folds != number)))
                held.append(part(source.tested(source.samples).take(rows, np.zeros_like(rows))).numpy())
                own.append(labels[rows])
            logits, truth = np.concatenate(held), np.concatenate(own)
            weights = balanced_weights(truth, classes)
            factor = fit_factor(logits, truth, weights)
            score = cross_entropy(factor * logits, truth, weights)
            study.add("gaussian", settings, 0, factor * source.answers(model, study.test), score, seconds)


class Trained(NamedTuple):
    """A head on all training images: logits of it and of the closed form, of test and of held-out images."""

    card: Card
    held: HeldOut
    head: Any
    gaussian: Any
    seconds: float

    def sum(self) -> tuple[Any, str]:
        """Return the sum of both, each calibrated on held-out training images, as `gpaco train` does."""
        large = without_small_classes(self.held, np.asarray(self.card.counts))
        both = fit_calibration(self.card, large.labels, large.head, large.gaussian)
        words = f"factors {both.head:.3g} {both.gaussian:.3g}"
        return both.head * self.head + both.gaussian * self.gaussian, words


def trained(study: Study, method: str, seed: int) -> Trained:
    recipe = recipes.fill(study.stage, METHODS[method] | {"train.seed": seed})
    card, splits = describe(recipe, study.task.splits), study.task.splits
    source = study.source.with_recipe(recipe)
    began = time.perf_counter()
    head = fit_head(recipe, splits, card, source, CPU, Earlier())
    seconds = time.perf_counter() - began
    held = held_out_logits(ClassificationLearner(recipe, splits, head, card, source, select=False), CPU)
    one, gaussian = source.answers(head.classify, study.test), source.answers(closed_form(source), study.test)
    return Trained(card, held, one, gaussian, seconds)


def heads(study: Study, method: str, seed: int) -> None:
    """A trained head alone and added to the closed form; `held_out` is the balanced accuracy on held-out images."""
    words = "default"
    if study.has(f"{method} fused", words, seed):
        return
    found = trained(study, method, seed)
    card, held = found.card, found.held
    if held.head is None:
        raise TypeError("only methods that train")
    weights = balanced_weights(held.labels, len(card.classes))
    score = float(np.average(held.head.argmax(1) == held.labels, weights=weights))
    held = without_small_classes(held, study.task.splits.train.counts)
    alone = fit_calibration(card, held.labels, held.head, None)
    study.add(method, words, seed, alone.head * found.head, score, found.seconds)
    study.add(f"{method} fused", words, seed, found.sum()[0], score, found.seconds)


def lengths(study: Study, method: str, epochs: int, others: Sequence[str] = ()) -> None:
    """A head trained for so many epochs, alone and added to the closed form, on held-out training images only."""
    words = f"{' '.join([f'train.epochs={epochs}', *others])}, cross-validated"
    if study.has(f"{method} fused", words, 0):
        return
    recipe = recipes.fill(study.stage, METHODS[method] | {"train.epochs": epochs})
    recipe = recipes.fill(recipe, {"schedule.warmup": min(recipe.schedule.warmup, epochs // 6)})
    card, splits, source = describe(recipe, study.task.splits), study.task.splits, study.source.with_recipe(recipe)
    began = time.process_time()
    held = held_out_logits(ClassificationLearner(recipe, splits, study.learner.model, card, source, select=False), CPU)
    seconds = time.process_time() - began
    if held.head is None:
        raise TypeError("only methods that train")
    weights = balanced_weights(held.labels, len(card.classes))
    both = used_logits(recipe, card, held)
    for name, logits in ((method, held.head), (f"{method} fused", both)):
        score = float(np.average(logits.argmax(1) == held.labels, weights=weights))
        study.add(name, words, 0, logits, score, seconds, held.labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name")
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--long-tail", type=float, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, nargs="+")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="with --epochs")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "heads.csv")
    options = parser.parse_args()
    if options.set and not options.epochs:
        parser.error("--set needs --epochs")
    name = options.name or Path(options.data).name
    changes, _ = recipes.parse(options.set)
    study = Study(options.data, name, options.size, options.long_tail, options.out, options.results, changes)
    if options.epochs:
        for epochs in options.epochs:
            for method in ("balanced-softmax", "gpaco"):
                lengths(study, method, epochs, options.set)
        return
    closed_forms(study)
    for seed in range(options.seeds):
        for method in METHODS:
            heads(study, method, seed)


if __name__ == "__main__":
    main()
