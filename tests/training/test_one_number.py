"""A training step asks the device for one thing: `check_step`. Counted on the CPU, where a GPU would wait each time."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.small_methods import TRAINED, batch, make
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpaco.data.batches import Batch, mix
from gpaco.recipes.recipe import change
from gpaco.recipes.settings import Recipe, used
from gpaco.training import loop
from gpaco.training.loop import check_step, fit

WAITS = ("_local_scalar_dense", "equal", "nonzero")


class Counted(TorchDispatchMode):
    """Counts the operators that make the host wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name in WAITS or by_mask:
            self.waits[name] += 1
        return func(*args, **(kwargs or {}))


class Small:
    """A learner with one method on a small network, with momentum keys and mixed labels where it has them."""

    def __init__(self, method: str, recipe: Recipe, rebalance: str) -> None:
        self.recipe = recipe
        self.model, self.extra = make(method, f"method.rebalance={rebalance}", "method.momentum_keys=true")
        self.steps, self.card, self.mixed = 3, None, rebalance == "prior" and "mixup" in used(method)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        plain = [Batch(*batch(seed=step)) for step in range(start, 3)]
        return iter([mix(one, 0.2, 0, 3, seed=(0,)) for one in plain] if self.mixed else plain)

    def start(self, batch: Batch) -> float:
        return 0.0

    def loss(self, network: nn.Module, batch: Batch) -> Tensor:
        result: Tensor = self.extra(network, batch.views, batch.labels)
        return result

    def after_step(self) -> None:
        self.extra.after_step(self.model)

    def validate(self, network: nn.Module) -> dict[str, Any]:
        return {}


@pytest.mark.slow
@pytest.mark.parametrize(("amp", "rebalance"), [("off", "weights"), ("off", "prior"), ("bf16", "weights")])
def test_a_step_of_every_method_reads_one_number(
    amp: str, rebalance: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "save", lambda *parts, **options: None)  # a checkpoint is written after the last step
    checked: list[Counter[str]] = []

    def counting(*args: Any, **options: Any) -> Any:
        result = check_step(*args, **options)
        checked.append(Counter(counted.waits))
        return result

    monkeypatch.setattr(loop, "check_step", counting)
    recipe = change(Recipe(), {"train.epochs": 1, "train.amp": amp, "train.ema": 0.9, "optimizer.clip": 1.0})
    for method in TRAINED:
        checked.clear()
        folder = tmp_path / method
        folder.mkdir()
        with Counted() as counted:
            fit(Small(method, recipe, rebalance), folder, torch.device("cpu"))
        between = checked[2] - checked[1]  # all that happens from one check to the next
        assert sum(between.values()) <= 1, f"{method}: {dict(between)}"
