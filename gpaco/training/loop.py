"""fit(): the training loop, top to bottom. It does not know the task: it is handed batches and a function to a loss.

Everything random is a function of (seed, epoch, step), so a run that is stopped at any moment and started again ends
with the same bits as one that was not.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gpaco.errors import Diverged, UserError
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.files import append_jsonl, trim_jsonl
from gpaco.system.progress import Show, quiet
from gpaco.system.signals import Stopped, catch_signals
from gpaco.training import checkpoint
from gpaco.training.optimizer_state import pack_optimizer, unpack_optimizer
from gpaco.training.schedule import learning_rate, parameter_groups, set_learning_rate

BAD_STEPS = 5  # in a row, before a run is given up


@dataclass
class Task:
    """What is trained, on what, and how a batch becomes a loss."""

    model: nn.Module
    extra: nn.Module  # further state that belongs to the run, such as a memory
    steps: int  # per epoch
    batches: Callable[[int, int], Iterator[Any]]  # (epoch, first step) -> the batches of this process
    loss: Callable[[nn.Module, Any], Tensor]
    start: Callable[[Any], float] = lambda batch: 0.0  # once, before the first step
    after_step: Callable[[], None] = lambda: None
    evaluate: Callable[[nn.Module], dict[str, Any]] | None = None  # on validation data; the key "score" chooses
    about: dict[str, Any] = field(default_factory=dict)  # saved with every checkpoint


@dataclass
class Position:
    """Where a run is. Saved with every checkpoint."""

    epoch: int = 0
    step: int = 0  # of the epoch
    loss: float = 0.0  # sum over the good steps of the epoch
    good: int = 0  # steps of the epoch whose loss and gradient were finite
    images: int = 0
    best: float | None = None
    best_step: int | None = None
    shift: float = 0.0  # of the balanced start


def fit(
    task: Task,
    recipe: Recipe,
    folder: Path,
    device: torch.device,
    show: Show = quiet,
) -> Position:
    """Train to the end of the recipe, from the newest checkpoint in the folder if there is one."""
    settings = recipe.train
    model, extra = task.model.to(device), task.extra.to(device)
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = make_optimizer(recipe, model)
    scaler = torch.amp.GradScaler(device.type, enabled=settings.amp == "fp16")
    ema = copy.deepcopy(model).requires_grad_(False) if settings.ema else None
    parts = {"model": model, "extra": extra} | ({"ema": ema} if ema is not None else {})
    progress, notes = resume(folder, parts, optimizer, scaler, task.about)
    for note in notes:
        show({"note": note})

    wrapped: nn.Module = torch.compile(model) if settings.compile else model  # type: ignore[assignment]
    if distributed.world_size() > 1:
        # Buffers are ours to keep equal: batch-norm statistics are those of process 0, shared before evaluation.
        known = signature(DistributedDataParallel).parameters
        name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # its old name
        option: dict[str, Any] = {name: False}
        wrapped = DistributedDataParallel(wrapped, **option)
    amp = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.amp)
    autocast = torch.autocast(device.type, dtype=amp) if amp else nullcontext()
    bad_steps, now = 0, time.perf_counter
    buffers = list(model.buffers())
    kept = [buffer.clone() for buffer in buffers]  # a step that is not finite must not stay in batch-norm statistics

    def save() -> None:
        if distributed.rank() == 0:
            write(folder, task, progress, parts, optimizer, scaler, keep=settings.keep)
        distributed.barrier()

    with catch_signals() as received:
        while progress.epoch < settings.epochs:
            began, images_before, seconds_waiting = now(), progress.images, 0.0
            model.train()
            extra.train()
            batches = task.batches(progress.epoch, progress.step)
            while progress.step < task.steps:
                asked = now()
                batch = next(batches).to(device)
                seconds_waiting += now() - asked
                if progress.epoch == progress.step == 0:
                    progress.shift = task.start(batch)
                torch.manual_seed(step_seed(settings.seed, progress.epoch, progress.step))
                rate = rate_of_step(recipe, progress.epoch * task.steps + progress.step, task.steps)
                set_learning_rate(optimizer, rate)

                loss = 0.0
                optimizer.zero_grad(set_to_none=True)
                for k, chunk in enumerate(chunks := batch.chunks(settings.accumulate)):
                    last = k == len(chunks) - 1
                    waits: AbstractContextManager[None] = nullcontext()
                    if not last and isinstance(wrapped, DistributedDataParallel):
                        waits = wrapped.no_sync()
                    with waits:
                        with autocast:
                            part = task.loss(wrapped, chunk) * (len(chunk) / len(batch))
                        scaler.scale(part).backward()
                    loss += float(part.detach())
                scaler.unscale_(optimizer)
                length = clip_gradients(model, recipe.optimizer.clip)

                # With float16 a gradient may overflow: the scaler then leaves out the step, and scales less.
                overflow = scaler.is_enabled() and not math.isfinite(length) and scaler.get_scale() >= 1
                finite = math.isfinite(loss) and (overflow or math.isfinite(length))
                bad, signal = distributed.agree(int(not finite), received())
                if bad:
                    bad_steps += 1
                    copy_all(buffers, kept)
                    scaler.update(scaler.get_scale())
                else:
                    bad_steps = 0
                    copy_all(kept, buffers)
                    scaler.step(optimizer)
                    scaler.update()
                    task.after_step()
                    if ema is not None:
                        update_ema(ema, model, settings.ema)
                    progress.loss, progress.good = progress.loss + loss, progress.good + 1
                    progress.images += len(batch)
                if bad_steps >= BAD_STEPS:
                    raise Diverged(
                        f"the loss or its gradient was not finite in {BAD_STEPS} steps in a row "
                        f"(epoch {progress.epoch + 1}, step {progress.step + 1}); the last checkpoint is kept",
                        f"lower the learning rate (now {rate:g}: --lr), or clip gradients: --set optimizer.clip=1",
                    )
                progress.step += 1
                where = {"epoch": progress.epoch, "epochs": settings.epochs, "step": progress.step, "steps": task.steps}
                show(where | {"loss": loss, "lr": rate})
                if signal:
                    save()
                    raise Stopped(signal)

            row: dict[str, Any] = {
                "epoch": progress.epoch + 1,
                "loss": progress.loss / max(progress.good, 1),
                "lr": rate_of_step(recipe, (progress.epoch + 1) * task.steps - 1, task.steps),
            }
            seconds = now() - began
            for network in (model, ema):
                if network is not None:
                    distributed.share_buffers(network)
            if task.evaluate is not None:
                row |= task.evaluate(ema if ema is not None else model)
                score = row["score"]
                if progress.best is None or score > progress.best:
                    progress.best, progress.best_step = score, (progress.epoch + 1) * task.steps
            row["time"] = {
                "seconds": round(seconds, 3),
                "images_per_second": round(
                    distributed.world_size() * (progress.images - images_before) / max(seconds, 1e-9), 1
                ),
                "waiting": round(seconds_waiting, 3),
            }
            if distributed.rank() == 0:
                append_jsonl(folder / "metrics.jsonl", row)
            progress.epoch, progress.step, progress.loss, progress.good = progress.epoch + 1, 0, 0.0, 0
            show(row | {"epochs": settings.epochs})
            done = progress.epoch == settings.epochs
            best = progress.best_step == progress.epoch * task.steps
            due = done or best or progress.epoch % settings.checkpoint_every == 0
            if due:
                save()
            (signal,) = distributed.agree(received())
            if signal:
                if not due:
                    save()
                raise Stopped(signal)
    return progress


def make_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    settings = recipe.optimizer
    groups = parameter_groups(
        model,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        decay_bias=settings.decay_bias,
        layer_decay=settings.layer_decay,
    )
    if settings.name == "adamw":
        return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.betas[0], settings.betas[1]))
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, nesterov=settings.nesterov)


def clip_gradients(model: nn.Module, longest: float) -> float:
    """Length of the gradient of all parameters together, before it is cut down to `longest` unless that is 0."""
    if longest:
        return float(nn.utils.clip_grad_norm_(model.parameters(), longest))
    return float(nn.utils.get_total_norm(p.grad for p in model.parameters() if p.grad is not None))


def rate_of_step(recipe: Recipe, step: int, steps: int) -> float:
    """The learning rate of a step, counted from the first one of training."""
    return learning_rate(
        step, steps_per_epoch=steps, epochs=recipe.train.epochs, lr=recipe.optimizer.lr, **asdict(recipe.schedule)
    )


@torch.no_grad()
def update_ema(ema: nn.Module, model: nn.Module, decay: float) -> None:
    """Move the average towards the model; batch-norm statistics are copied."""
    for mine, theirs in zip(ema.parameters(), model.parameters(), strict=True):
        mine.lerp_(theirs, 1 - decay)
    for own, other in zip(ema.buffers(), model.buffers(), strict=True):
        own.copy_(other)


def copy_all(to: list[Tensor], source: list[Tensor]) -> None:
    """Copy tensors into others in place; a model may have none, as most ViTs have no buffers."""
    if to:
        torch._foreach_copy_(to, source)


def step_seed(seed: int, epoch: int, step: int) -> int:
    """Seed of dropout and the like, for each step and process anew: there is no state to save."""
    mixed = 0
    for key in (seed, epoch, step, distributed.rank()):
        mixed = (mixed * 0x9E3779B97F4A7C15 + key + 1) & 0x7FFFFFFFFFFFFFFF
    return mixed


def write(
    folder: Path,
    task: Task,
    progress: Position,
    parts: dict[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    keep: int,
) -> None:
    """A checkpoint of everything, and the pruning of older ones."""
    packed, meta = pack_optimizer(optimizer)
    tensors = {name: dict(part.state_dict()) for name, part in parts.items()} | {"optimizer": packed}
    state = {
        "progress": vars(progress),
        "optimizer": meta,
        "scaler": scaler.state_dict(),
        "environment": environment(next(parts["model"].parameters()).device),
        "about": task.about,
    }
    step = progress.epoch * task.steps + progress.step
    checkpoint.save(folder / "checkpoints", step, tensors, state)
    best = [] if progress.best_step is None else [f"step-{progress.best_step:08d}"]
    checkpoint.prune(folder / "checkpoints", keep, best)


def resume(
    folder: Path,
    parts: dict[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    about: dict[str, Any],
) -> tuple[Position, list[str]]:
    """Load the newest good checkpoint of the folder, if there is one; where the run is, and what to tell about it."""
    if not checkpoint.find(folder / "checkpoints"):
        return Position(), []
    found = checkpoint.load(folder / "checkpoints")
    tensors, state = found.tensors, found.state
    about_data = about.keys() - {"gpaco"}  # its version
    changed = [key for key in sorted(about_data) if state["about"].get(key, about[key]) != about[key]]
    if changed:
        raise UserError(
            f"the data of the run in {folder} has changed since it began: other {' and '.join(changed)}",
            "put the data back as it was, or start anew with another --out",
        )
    for name, part in parts.items():
        part.load_state_dict(tensors[name])
    unpack_optimizer(optimizer, tensors["optimizer"], state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    differs = drift(state["environment"], next(parts["model"].parameters()).device)
    progress = Position(**state["progress"])
    if distributed.rank() == 0:
        trim_jsonl(folder / "metrics.jsonl", lambda row: row["epoch"] <= progress.epoch)
    return progress, [*found.warnings, *(f"this machine differs, so bits may: {what}" for what in differs)]


def environment(device: torch.device) -> dict[str, Any]:
    """What bits depend on beside the recipe."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": device.type,
        "processes": distributed.world_size(),
    }


def drift(recorded: dict[str, Any], device: torch.device) -> list[str]:
    """Restore the number of threads; what else is different from the machine that wrote the checkpoint."""
    torch.set_num_threads(int(recorded["threads"]))
    present = environment(device)
    return [f"{key} was {recorded[key]}, is {present[key]}" for key in present if recorded.get(key) != present[key]]
