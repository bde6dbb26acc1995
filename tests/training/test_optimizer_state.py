"""An optimizer's state in a checkpoint: it goes on bit for bit, and that of another is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from gpaco.errors import UserError
from gpaco.training.checkpoint import load, save
from gpaco.training.optimizer_state import pack_optimizer, unpack_optimizer


def small_model() -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5))
    return model.to(memory_format=torch.channels_last)


def train_steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, count: int) -> None:
    for step in range(first, first + count):
        images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(images).logsumexp(1).sum().backward()
        optimizer.param_groups[0]["lr"] = 0.01 / (step + 1)
        optimizer.step()


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4),
    "nesterov": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, nesterov=True),
    "no momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.01),
    "adamw": lambda m: torch.optim.AdamW(
        [{"params": [*m[0].parameters()], "lr_scale": 0.5}, {"params": [*m[1:].parameters()], "weight_decay": 0.0}],
        lr=0.01,
        betas=(0.9, 0.95),
    ),
    "amsgrad": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, amsgrad=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("done", [0, 1, 4])
def test_an_optimizer_goes_on_bit_for_bit_from_a_checkpoint(tmp_path: Path, name: str, done: int) -> None:
    whole = small_model()
    optimizer = OPTIMIZERS[name](whole)
    train_steps(whole, optimizer, 0, done)
    tensors, meta = pack_optimizer(optimizer)
    save(tmp_path, done, {"model": whole.state_dict(), "optimizer": tensors}, {"optimizer": meta})
    train_steps(whole, optimizer, done, 4)

    found = load(tmp_path)
    resumed = small_model()
    resumed.load_state_dict(found.tensors["model"])
    again = OPTIMIZERS[name](resumed)
    unpack_optimizer(again, found.tensors["optimizer"], found.state["optimizer"])
    train_steps(resumed, again, done, 4)

    for key, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key
    mine, theirs = pack_optimizer(optimizer), pack_optimizer(again)
    assert mine[1] == theirs[1]
    assert all(torch.equal(value, theirs[0][key]) for key, value in mine[0].items())
    assert optimizer.defaults == again.defaults
    for a, b in zip(optimizer.param_groups, again.param_groups, strict=True):
        assert {k: v for k, v in a.items() if k != "params"} == {k: v for k, v in b.items() if k != "params"}


def test_a_state_of_another_optimizer_or_model_is_refused() -> None:
    sgd, adamw = (OPTIMIZERS[name](small_model()) for name in ("sgd", "adamw"))
    tensors, meta = pack_optimizer(sgd)
    for wrong in (adamw, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)):
        with pytest.raises(UserError, match="the checkpoint is from SGD with parameters in groups of"):
            unpack_optimizer(wrong, tensors, meta)
