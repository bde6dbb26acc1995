"""What a step of `fit` costs beyond the same forward, loss, backward and step in a bare loop. About two minutes.

    python benchmarks/loop.py [--out benchmarks/results]

Both do the same steps (resnet8, two views of 128 images of 32 px, GPaCo with a memory of 1,024, SGD), in turn, in one
process, with batches made beforehand, so that only the loop is compared. Images are random: nothing is learned.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from table import write
from torch import Tensor, nn

from gpaco import methods
from gpaco.data.batches import Batch
from gpaco.methods.method import Method
from gpaco.models.backbones import build
from gpaco.models.classifier import Classifier
from gpaco.recipes.recipe import override
from gpaco.recipes.settings import Recipe
from gpaco.training.loop import fit

STEPS, ROUNDS, CLASSES = 10, 6, 100


def parts() -> tuple[Recipe, Classifier, Method, list[Batch]]:
    """A recipe, a model, a method and the batches, the same every time."""
    torch.manual_seed(0)
    recipe = override(
        Recipe(),
        ["method.memory=1024", "train.epochs=1", "schedule.warmup=0", "views.first=plain", "views.second=plain"],
    )
    backbone = build("resnet8")
    model = Classifier(backbone.module, backbone.num_features, CLASSES).to(memory_format=torch.channels_last)
    method = methods.build(recipe, model, CLASSES, torch.ones(CLASSES))
    batches = [
        Batch([torch.randn(128, 3, 32, 32) for _ in range(2)], torch.randint(CLASSES, (128,))) for _ in range(STEPS)
    ]
    return recipe, model, method, batches


@dataclass(frozen=True)
class NoCard:
    """A card without a field."""


class Learner:
    """What `fit` trains."""

    steps = STEPS
    card = NoCard()

    def __init__(self, recipe: Recipe, model: Classifier, method: Method, batches: list[Batch]) -> None:
        self.recipe, self.model, self.extra, self.made = recipe, model, method, batches

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        return iter(self.made[start:])

    def start(self, batch: Batch) -> float:
        return 0.0

    def loss(self, network: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = self.extra(network, batch.views, batch.labels)
        return loss

    def after_step(self) -> None:
        self.extra.after_step(self.model)

    def validate(self, network: nn.Module) -> dict[str, Any]:
        return {}


def with_fit() -> float:
    """Seconds per step of `fit`, without its checkpoint at the end."""
    recipe, model, method, batches = parts()
    stamps: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        fit(
            Learner(recipe, model, method, batches),
            Path(folder),
            torch.device("cpu"),
            show=lambda row: stamps.append(time.perf_counter()) if "steps" in row else None,
        )
    return (stamps[-1] - stamps[0]) / (STEPS - 1)


def bare() -> float:
    """Seconds per step of the same, written out."""
    _, model, method, batches = parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    stamps = []
    for batch in batches:
        loss = method(model, batch.views, batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stamps.append(time.perf_counter())
    return (stamps[-1] - stamps[0]) / (STEPS - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    times: dict[str, list[float]] = {"fit": [], "bare": []}
    for _ in range(ROUNDS):
        times["bare"].append(bare())
        times["fit"].append(with_fit())
    seconds = {name: statistics.median(values) for name, values in times.items()}
    ratio = statistics.median(ours / raw for ours, raw in zip(times["fit"], times["bare"], strict=True))
    print(f"bare {seconds['bare']:.4f} s, fit {seconds['fit']:.4f} s per step: {100 * (ratio - 1):+.1f}%")
    rows: list[dict[str, Any]] = [
        {"loop": name, "seconds_per_step": round(s, 5), "rounds": ROUNDS} for name, s in seconds.items()
    ]
    rows[0]["ratio"] = round(ratio, 4)
    write(options.out / "loop.csv", rows)


if __name__ == "__main__":
    main()
