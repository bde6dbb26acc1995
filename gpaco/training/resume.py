"""Saves the position of a run in a checkpoint, and resumes from it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpaco.errors import UserError
from gpaco.system import distributed
from gpaco.system.files import trim_jsonl
from gpaco.training import checkpoint
from gpaco.training.card import write_card
from gpaco.training.optimizer_state import pack_optimizer, unpack_optimizer
from gpaco.training.task import Learner


@dataclass
class Position:
    """The progress of a run, saved with every checkpoint."""

    epoch: int = 0
    step: int = 0  # within the epoch
    loss: float = 0.0  # sum over the good steps of the epoch
    good: int = 0  # steps of the epoch whose loss and gradient were finite
    images: int = 0
    best: float | None = None
    best_step: int | None = None
    shift: float = 0.0  # of the balanced start


def save(
    folder: Path,
    learner: Learner,
    position: Position,
    parts: dict[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    keep: int,
) -> None:
    """Write a complete checkpoint, and delete older ones."""
    packed, meta = pack_optimizer(optimizer)
    tensors = {name: dict(part.state_dict()) for name, part in parts.items()} | {"optimizer": packed}
    state = {
        "position": vars(position),
        "optimizer": meta,
        "scaler": scaler.state_dict(),
        "environment": environment(next(parts["model"].parameters()).device),
        "card": write_card(learner.card),
    }
    step = position.epoch * learner.steps + position.step
    checkpoint.save(folder / "checkpoints", step, tensors, state)
    best = [] if position.best_step is None else [f"step-{position.best_step:08d}"]
    checkpoint.prune(folder / "checkpoints", keep, best)


def resume(
    folder: Path, card: Any, parts: dict[str, nn.Module], optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> tuple[Position, list[str]]:
    """Load the newest good checkpoint in the folder, if any; return the position and notes to print."""
    if not checkpoint.find(folder / "checkpoints"):
        if distributed.rank() == 0:
            trim_jsonl(
                folder / "metrics.jsonl", lambda row: False
            )  # left by a run that was killed before its first checkpoint
        return Position(), []
    found = checkpoint.load(folder / "checkpoints")
    tensors, state = found.tensors, found.state
    mine = write_card(card)
    changed = [key for key in sorted(mine.keys() - {"gpaco"}) if state["card"].get(key) != mine[key]]
    if changed:
        raise UserError(
            f"the data of the run in {folder} has changed since it started: different {' and '.join(changed)}",
            "restore the data, or start over with another --out",
        )
    for name, part in parts.items():
        part.load_state_dict(tensors[name])
    unpack_optimizer(optimizer, tensors["optimizer"], state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    then = state["environment"]
    notes = list(found.warnings)
    available = torch.get_num_threads()
    if then["threads"] < available:
        torch.set_num_threads(then["threads"])  # the last bits of sums depend on it
        notes.append(f"threads: {then['threads']}, as when the run started; {available} are available")
    now = environment(next(parts["model"].parameters()).device)
    differs = [f"{key} was {then[key]}, is {now[key]}" for key in now if then.get(key) != now[key]]
    position = Position(**state["position"])
    if distributed.rank() == 0:
        if not found.warnings:
            checkpoint.name_latest(found.path)  # the run may have been killed between writing and naming it
        trim_jsonl(folder / "metrics.jsonl", lambda row: row["epoch"] <= position.epoch)
    return position, notes + [f"results may differ slightly: {what}" for what in differs]


@contextmanager
def threads_restored() -> Iterator[None]:
    """Restore the number of threads at the end: a resumed run uses no more than it started with."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def environment(device: torch.device) -> dict[str, Any]:
    """Return what the exact bits of a result depend on besides the recipe."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": device.type,
        "processes": distributed.world_size(),
    }
