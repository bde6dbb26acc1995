"""NaN and infinity at six points of a step of one of two processes."""

import tempfile
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from helpers.ranks import Results, run_ranks
from torch import Tensor, nn

from faults.promise import Promise
from faults.runs import dice_of
from faults.world import digits
from gpaco.data.batches import Batch
from gpaco.errors import Diverged
from gpaco.recipes.recipe import override
from gpaco.system import distributed
from gpaco.tasks.classification.learner import ClassificationLearner
from gpaco.training import checkpoint
from gpaco.training.loop import BAD_STEPS, fit

POINTS = ("input", "features", "embeddings", "logits", "loss", "gradient")
WAYS = list(product((float("nan"), float("inf")), ("off", "bf16")))


class Poisoned(ClassificationLearner):
    """In some steps, in the second process, one number is not finite."""

    def poison(self, point: str, value: float, steps: set[int]) -> None:
        self.point, self.value, self.bad, self.step = point, value, steps, -1
        self.updates = 0
        layers = {"features": self.model.backbone, "embeddings": self.model.projector, "logits": self.model.centers}
        if point in layers:
            layers[point].register_forward_hook(lambda module, inputs, output: self.spoiled(output))
        if point == "gradient":
            next(self.model.backbone.parameters()).register_hook(self.spoiled)

    def spoiled(self, tensor: Tensor) -> Tensor:
        if self.step not in self.bad or distributed.rank() != 1:
            return tensor
        spoiled = tensor.flatten().clone()
        spoiled[spoiled.numel() // 2] = self.value
        return spoiled.view_as(tensor)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        for batch in super().batches(epoch, start):
            self.step += 1
            if self.point == "input":
                batch = Batch([self.spoiled(batch.views[0]), *batch.views[1:]], batch.labels)
            yield batch

    def loss(self, network: nn.Module, batch: Batch) -> Tensor:
        loss = super().loss(network, batch)
        if self.point == "loss" and self.step in self.bad and distributed.rank() == 1:
            loss = loss * self.value
        return loss

    def after_step(self) -> None:
        self.updates += 1
        super().after_step()


def train(seed: int, cases: list[tuple[str, float, str]]) -> Results:
    """Each case in turn: one bad step, which is skipped, and five in a row, which end the run."""
    results: Results = {}
    with tempfile.TemporaryDirectory() as name:
        # Epochs of a few steps: there is a checkpoint before the run ends.
        made = digits(Path(name), seed, "train.ema=0.5", "train.keep=9", batch_size=16, validation=0.85, epochs=9)
    for number, (point, value, amp) in enumerate(cases):
        case, alone = f"{point} {value} amp={amp}", dice_of("finite", seed, number).randrange(1, 6)
        row = range(alone + 2, alone + 2 + BAD_STEPS)
        recipe = override(made.recipe, [f"train.amp={amp}"])
        learner = Poisoned(recipe, made.splits, deepcopy(made.model), made.card, made.source, select=False)
        learner.poison(point, value, {alone, *row})
        weights: list[Tensor] = []
        with tempfile.TemporaryDirectory() as name:
            try:
                fit(learner, Path(name), torch.device("cpu"), partial(_keep, learner, weights))
            except Diverged as error:
                assert error.exit_code == 4  # noqa: PT017
            else:
                raise AssertionError(f"{case}: the run did not end")
            saved = [checkpoint.load(path).tensors for path in checkpoint.find(Path(name) / "checkpoints")]
        if distributed.rank() == 0:
            assert len(saved) == row[-1] // learner.steps > 0, f"{case}: {len(saved)} checkpoints"
            for kept in saved:
                assert kept.keys() == {"model", "ema", "optimizer", "extra"}
                assert all(tensor.isfinite().all() for part in kept.values() for tensor in part.values()), case
        assert learner.step == row[-1], f"{case}: ended in step {learner.step}, not {row[-1]}"
        assert learner.updates == alone + 1, f"{case}: {learner.updates} updates, not {alone + 1}"
        assert torch.equal(weights[alone], weights[alone - 1]), f"{case}: the bad step was taken"
        assert not torch.equal(weights[alone + 1], weights[alone]), f"{case}: the good step was not taken"
        for key, tensor in {**learner.model.state_dict(), **learner.extra.state_dict()}.items():
            assert tensor.isfinite().all(), f"{case}: {key} is not finite"
        results[f"{number} weights"] = weights[-1]
        results |= {f"{number} {key}": tensor for key, tensor in learner.extra.state_dict().items()}
    return results


def _keep(learner: ClassificationLearner, weights: list[Tensor], row: dict[str, Any]) -> None:
    if "step" in row:
        weights.append(torch.cat([parameter.detach().flatten() for parameter in learner.model.parameters()]))


def attempt(number: int, home: Path) -> int:
    cases = [(point, *WAYS[(number + k) % len(WAYS)]) for k, point in enumerate(POINTS)]  # all after four attempts
    first, second = run_ranks(2, partial(train, number, cases))
    for key, value in first.items():
        assert torch.equal(value, second[key]), f"the processes differ in {key} of {cases}"
    return 2 * len(cases)


PROMISE = Promise(
    "NaN and infinity in one process, in input, features, embeddings, logits, loss or gradient, in float32 and "
    "bfloat16: all processes skip the step, memory and weights stay clean and equal, five in a row end with exit 4",
    attempt,
    attempts=1,
    goal=480,
    more=range(1, 4),
)
