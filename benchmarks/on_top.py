"""Training on top of the closed-form classifier, against adding it to a head that was trained without it.

    python benchmarks/on_top.py DATA --out DIR [--name NAME] [--size 96] [--long-tail 100] [--seeds 5] [--methods ...]

All methods see the same cached features of EfficientNet-Lite0 (benchmarks/heads.py embeds them, with the same --out):

    nearest-class-mean      cosine to the class means
    logistic-regression     scikit-learn's, class_weight="balanced"; C and the scaling chosen by cross-validation
    gaussian                the closed form
    class-mean-start        LIFT's: a cosine classifier that starts at the class means, trained with balanced softmax
    balanced-softmax, gpaco a head with one hidden layer, default settings
    ... sum                 its logits and those of the closed form, each calibrated on held-out training images
    ... on top              the head learns what the closed form lacks: in training, leave-one-out logits of the closed
                            form (the image is taken out of its class mean and of the covariance) are a fixed offset

Rows are added to benchmarks/results/on_top.csv as they come, and the table of docs/defaults.md is written at the end.
Rerun the same command to resume.
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from first_model import logistic_regression, nearest_class_mean
from heads import FIGURES, Study, Trained, trained
from table import append, has, read, spread, with_interval, write_between
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco import GPaCoLoss, balanced_softmax_loss
from gpaco.metrics.calibration import balanced_weights, fit_factor
from gpaco.metrics.classification import summarize
from gpaco.models.classifier import Classifier
from gpaco.models.gaussian import SHRINKAGE
from gpaco.tasks.classification.defaults import memory_for
from gpaco.tasks.classification.heads import FOLDS

METHODS = (
    *("nearest-class-mean", "logistic-regression", "gaussian", "class-mean-start"),
    *("balanced-softmax", "balanced-softmax sum", "balanced-softmax on top", "gpaco", "gpaco sum", "gpaco on top"),
)
RESULTS = Path(__file__).parent / "results" / "on_top.csv"
PAGE = Path(__file__).parents[1] / "docs" / "defaults.md"
BATCH, RATE, DECAY, HIDDEN = 128, 0.05, 5e-4, 512  # as the heads have


class ClosedForm:
    """The closed form of gpaco/models/gaussian.py, with leave-one-out logits; x (N, F) are features as they come."""

    def __init__(self, x: Tensor, y: Tensor, classes: int) -> None:
        self.rooted, self.y, self.classes = bool((x >= 0).all()), y, classes
        self.x = self.prepared(x)
        self.counts = torch.bincount(y, minlength=classes).double()
        self.means = self.x.new_zeros(classes, x.shape[1]).index_add(0, y, self.x) / self.counts.clamp(min=1)[:, None]
        self.away, free = self.x - self.means[y], len(y) - classes
        covariance = self.away.T @ self.away / free
        ridge = SHRINKAGE * covariance.trace() / x.shape[1]
        self.inverse = torch.linalg.inv(covariance + ridge * torch.eye(x.shape[1], dtype=torch.float64))
        self.trace = (self.inverse * covariance).sum()
        self.weight = self.means @ self.inverse
        self.lengths = (self.weight * self.means).sum(1)
        self.bias = -0.5 * self.lengths + 0.5 * self.trace / self.counts.clamp(min=1)

    def prepared(self, x: Tensor) -> Tensor:
        unit: Tensor = F.normalize(x.double().clamp(min=0).sqrt() if self.rooted else x.double(), dim=-1)
        return unit

    def __call__(self, x: Tensor) -> Tensor:
        logits: Tensor = self.prepared(x) @ self.weight.T + self.bias
        return logits

    def without_each(self, x: Tensor) -> Tensor:
        """Logits of a view of each training image by the classifier without that image.

        With u = image - mean of its n images, the mean moves by -u / (n - 1) and the scatter loses n / (n - 1) u u';
        the inverse follows by Sherman and Morrison's formula. The trace in the ridge is kept.
        """
        x, rows, own, free = self.prepared(x), torch.arange(len(self.y)), self.y, len(self.y) - self.classes
        n = self.counts[own]
        left, shrunk = (n - 1).clamp(min=1), free / (free - 1)
        z = self.away @ self.inverse
        uz = (self.away * z).sum(1)
        gain = n / left / free
        gain = (gain / (1 - gain * uz))[:, None]
        towards, xz = z @ self.means.T, (x * z).sum(1, keepdim=True)
        products, lengths = x @ self.weight.T, self.lengths.expand(len(x), -1).clone()
        lengths[rows, own] += uz / left**2 - 2 * towards[rows, own] / left
        products[rows, own] -= xz[:, 0] / left
        towards[rows, own] -= uz / left
        counts = self.counts.expand(len(x), -1).clone()
        counts[rows, own] = left
        logits = (products + gain * towards * xz - 0.5 * (lengths + gain * towards**2)) / shrunk
        corrected: Tensor = logits + 0.5 * self.trace / counts.clamp(min=1)
        return corrected


class Features:
    """Training features in each cached view, training and test features as tested, and labels."""

    def __init__(self, study: Study) -> None:
        source = study.source
        self.y, self.test_y = torch.from_numpy(source.labels), study.test.labels
        self.x, self.test = (_all(source.tested(part), 0) for part in (source.samples, study.test))
        self.views = torch.stack([_all(source.features, view) for view in range(source.recipe.train.cached_views)], 1)
        self.classes = len(source.samples.classes)
        self.counts = torch.bincount(self.y, minlength=self.classes)
        self.form, self.epochs = ClosedForm(self.x, self.y, self.classes), study.stage.train.epochs
        large = self.counts[self.y] >= FOLDS
        weights = balanced_weights(source.labels, self.classes)[large.numpy()]
        self.factor = fit_factor(self.form.without_each(self.x)[large].numpy(), source.labels[large.numpy()], weights)
        self.study = study
        self.trained: dict[tuple[str, int], Trained] = {}  # heads by method and seed

    @cached_property
    def offsets(self) -> Tensor:
        """Leave-one-out logits of the closed form, for each view of each training image: (N, views, C)."""
        each = [self.form.without_each(self.views[:, k]).float() for k in range(self.views.shape[1])]
        return self.factor * torch.stack(each, 1)


def _all(features: Any, view: int) -> Tensor:
    rows = np.arange(len(features))
    found: Tensor = features.take(rows, np.full_like(rows, view))
    return found


def train(
    network: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], data: Features, seed: int, rate: float = RATE
) -> None:
    """SGD with momentum and a cosine rate; `loss` takes the rows of a batch and the two views of each."""
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=0.9, weight_decay=DECAY)
    images, views = data.views.shape[:2]
    batch = min(BATCH, images)
    steps, warmup = images // batch, data.study.stage.schedule.warmup
    for epoch in range(data.epochs):
        order = torch.randperm(images)
        warm = (epoch + 1) / warmup if epoch < warmup else 1.0
        cosine = 0.5 * (1 + math.cos(math.pi * max(0, epoch - warmup) / (data.epochs - warmup)))
        for group in optimizer.param_groups:
            group["lr"] = rate * min(warm, cosine)
        for step in range(steps):
            rows = order[step * batch : (step + 1) * batch]
            chosen = torch.rand(batch, views).argsort(1)[:, :2]
            optimizer.zero_grad()
            loss(rows, chosen).backward()
            optimizer.step()


def on_top(kind: str, data: Features, seed: int) -> Callable[[Tensor], Tensor]:
    """Train a head; the leave-one-out logits of the closed form are added to its own in training."""
    views, labels, counts, offsets = data.views, data.y, data.counts, data.offsets
    torch.manual_seed(seed)
    projector = "none" if kind == "balanced-softmax" else "gpaco"
    network = Classifier(nn.Identity(), views.shape[2], data.classes, hidden=HIDDEN, projector=projector)
    memory = memory_for(counts.numpy())
    criterion = GPaCoLoss(
        data.classes, class_counts=counts, prior="unbiased", alpha=0.05, temperature=0.2, memory=memory
    )

    def loss(batch: Tensor, chosen: Tensor) -> Tensor:
        both = [views[batch, chosen[:, k]] for k in range(2)]
        logits, embeddings = network(*both)
        logits = logits + torch.cat([offsets[batch, chosen[:, k]] for k in range(2)])
        target = labels[batch].repeat(2)
        if kind == "balanced-softmax":
            return balanced_softmax_loss(logits, target, counts.clamp(min=1))
        found: Tensor = criterion(logits, embeddings, target)
        return found

    train(network, loss, data, seed)
    network.eval()
    return network.classify


def class_mean_start(data: Features, seed: int) -> Tensor:
    """A cosine classifier that starts at the class means, with balanced softmax; scale 25 and rate 0.01 as in LIFT."""
    unit = F.normalize(data.x, dim=1)
    means = torch.zeros(data.classes, unit.shape[1]).index_add(0, data.y, unit)
    centers = nn.Linear(unit.shape[1], data.classes, bias=False)
    centers.weight.data.copy_(F.normalize(means, dim=1))

    def logits(x: Tensor) -> Tensor:
        return 25 * F.normalize(x, dim=1) @ F.normalize(centers.weight, dim=1).T

    def loss(batch: Tensor, chosen: Tensor) -> Tensor:
        found = torch.cat([logits(data.views[batch, chosen[:, k]]) for k in range(2)])
        return balanced_softmax_loss(found, data.y[batch].repeat(2), data.counts)

    train(centers, loss, data, seed, rate=0.01)
    with torch.inference_mode():
        return logits(data.test)


@torch.inference_mode()
def answers(classify: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    return classify(x).double().numpy()


def measured(method: str, data: Features, seed: int) -> tuple[Any, str]:
    """Logits of the test images."""
    y = data.y.numpy()
    if method == "nearest-class-mean":
        return nearest_class_mean(data.x.numpy(), y)(data.test.numpy()), ""
    if method == "logistic-regression":
        fit, words = logistic_regression(data.x.numpy(), y)
        return fit(data.x.numpy(), y)(data.test.numpy()), words
    if method == "class-mean-start":
        return class_mean_start(data, seed).numpy(), ""
    gaussian, words = data.factor * data.form(data.test).numpy(), f"factor {data.factor:.3g}"
    if method == "gaussian":
        return gaussian, words
    kind, _, way = method.partition(" ")
    if way == "on top":
        return answers(on_top(kind, data, seed), data.test) + gaussian, words
    if (kind, seed) not in data.trained:
        data.trained[kind, seed] = trained(data.study, kind, seed)
    return data.trained[kind, seed].sum() if way else (data.trained[kind, seed].head, "")


def table(results: Path) -> str:
    """Accuracy on all and on few-shot classes: mean and standard deviation over the seeds that are there."""
    rows = read(results)
    sets = list(dict.fromkeys(row["dataset"] for row in rows))
    lines = [f"| method | {' | '.join(f'{name}, all | few' for name in sets)} |", "|---" * (1 + 2 * len(sets)) + "|"]
    for method in METHODS:
        mine = [[row for row in rows if (row["dataset"], row["method"]) == (name, method)] for name in sets]
        cells = [spread([row[key] for row in cell]) for cell in mine for key in ("top1", "few")]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    for kind in ("balanced-softmax", "gpaco"):
        differences = [_paired(rows, name, kind, key) for name in sets for key in ("top1", "few")]
        lines.append(f"| *{kind}: on top - sum* | {' | '.join(differences)} |")
    return "\n".join(lines)


def _paired(rows: list[dict[str, str]], name: str, kind: str, key: str) -> str:
    """The mean difference of the same seeds, with its 95% interval."""
    both = [
        {
            row["seed"]: float(row[key])
            for row in rows
            if (row["dataset"], row["method"]) == (name, f"{kind} {way}")
            if row[key]
        }
        for way in ("on top", "sum")
    ]
    return with_interval([both[0][seed] - both[1][seed] for seed in both[0] if seed in both[1]], "+")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name")
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--long-tail", type=float, default=0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    name = options.name or Path(options.data).name
    study = Study(options.data, name, options.size, options.long_tail, options.out, options.results)
    data, card = Features(study), study.learner.card
    fixed = ("nearest-class-mean", "logistic-regression", "gaussian")  # have no seed
    for seed in range(options.seeds):
        for method in options.methods:
            key = {"dataset": name, "method": method, "seed": seed}
            if has(options.results, key) or (seed and method in fixed):
                continue
            began = time.perf_counter()
            logits, words = measured(method, data, seed)
            seconds = time.perf_counter() - began
            found = summarize(logits, data.test_y, card.counts, card.classes, many=card.many, few=card.few)
            row = {**key, "seconds": f"{seconds:.1f}", "settings": words}
            row |= {key: "" if found[key] is None else f"{found[key]:.4f}" for key in FIGURES}
            append(options.results, row)
            print({key: row[key] for key in ("method", "seed", "top1", "few", "ece", "seconds")}, words, flush=True)
    if options.results == RESULTS:
        write_between(PAGE, "<!-- on top -->", "<!-- end of on top -->", f"\n{table(RESULTS)}\n")


if __name__ == "__main__":
    main()
