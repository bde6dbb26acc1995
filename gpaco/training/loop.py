"""fit(): the training loop. It is independent of the task: a `Learner` provides batches and a loss.

Everything random is a function of (seed, epoch, step), so a run that is stopped at any moment and resumed has
bit-identical results. A step waits for the device only once, in `check_step` (with float16, also in the scaler).
"""

import copy
import time
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from gpaco.errors import Diverged
from gpaco.models.classifier import update_momentum
from gpaco.system import distributed
from gpaco.system.files import append_jsonl
from gpaco.system.precision import autocast
from gpaco.system.progress import Show, quiet
from gpaco.system.signals import Stopped, catch_signals
from gpaco.training.resume import Position, resume, save
from gpaco.training.schedule import learning_rate, make_optimizer, set_learning_rate
from gpaco.training.task import Learner

BAD_STEPS = 5  # consecutive bad steps after which training stops


def fit(learner: Learner, folder: Path | None, device: torch.device, show: Show = quiet) -> Position:
    """Train to the end of the learner's recipe, from the newest checkpoint in the folder, if any.

    Without a folder, nothing is saved, and the learner's model ends as the average, if there is one. A learner without
    steps is saved unchanged.
    """
    recipe, settings, steps = learner.recipe, learner.recipe.train, learner.steps
    model = learner.model.to(device).to(memory_format=torch.channels_last)
    extra = learner.extra.to(device).to(memory_format=torch.channels_last)
    optimizer = make_optimizer(recipe, model)
    scaler = torch.amp.GradScaler(device.type, enabled=settings.amp == "fp16")
    ema = copy.deepcopy(model).requires_grad_(False) if settings.ema else None
    parts = {"model": model, "extra": extra} | ({"ema": ema} if ema is not None else {})
    position, notes = resume(folder, learner.card, parts, optimizer, scaler) if folder else (Position(), [])
    for note in notes:
        show({"note": note})

    wrapped = wrap(model, compiled=settings.compile)
    norms = [one for one in extra.modules() if isinstance(one, _BatchNorm)]  # of a key network
    buffers = [buffer for one in (model, *norms) for buffer in one.buffers()]
    kept = [buffer.clone() for buffer in buffers]  # batch-norm statistics without skipped steps
    bad_steps, now = 0, time.perf_counter

    def save_now() -> None:
        if folder and distributed.rank() == 0:
            save(folder, learner, position, parts, optimizer, scaler, keep=settings.keep)
        distributed.barrier()

    if not steps and position.epoch < settings.epochs:
        position.epoch = settings.epochs
        save_now()

    with catch_signals() as received:
        while position.epoch < settings.epochs:
            began, images_before, waited = now(), position.images, 0.0
            model.train()
            extra.train()
            batches = learner.batches(position.epoch, position.step)
            while position.step < steps:
                asked = now()
                batch = next(batches).to(device)
                waited += now() - asked
                if position.epoch == position.step == 0:
                    position.shift = learner.start(batch.chunks(settings.accumulate)[0])  # as the loss will see it
                    if ema is not None:
                        ema.load_state_dict(model.state_dict())
                seed_step(step_seed(settings.seed, position.epoch, position.step), device)
                rate = learning_rate(recipe, position.epoch * steps + position.step, steps)
                set_learning_rate(optimizer, rate)

                optimizer.zero_grad(set_to_none=True)
                total = torch.zeros((), device=device)
                for chunk in synced_last(wrapped, batch.chunks(settings.accumulate)):
                    with autocast(device, settings.amp):
                        part = learner.loss(wrapped, chunk) * (len(chunk) / len(batch))
                    scaler.scale(part).backward()
                    total += part.detach()
                scaler.unscale_(optimizer)
                norm = clip_gradients(model, recipe.optimizer.clip)
                may_overflow = scaler.is_enabled() and scaler.get_scale() >= 1  # the scaler then skips the step
                loss, bad, signal = check_step(total, norm, received.number, may_overflow=may_overflow)

                if bad:
                    bad_steps += 1
                    copy_all(buffers, kept)
                    scaler.update(scaler.get_scale())
                else:
                    bad_steps = 0
                    copy_all(kept, buffers)
                    scaler.step(optimizer)
                    scaler.update()
                    learner.after_step()
                    if ema is not None:
                        update_momentum(ema, model, settings.ema)
                        copy_all(list(ema.buffers()), list(model.buffers()))
                    position.loss, position.good = position.loss + loss, position.good + 1
                    position.images += len(batch)
                if bad_steps >= BAD_STEPS:
                    raise Diverged(
                        f"the loss or its gradient was not finite in {BAD_STEPS} consecutive steps "
                        f"(epoch {position.epoch + 1}, step {position.step + 1}); the last checkpoint is kept",
                        f"lower the learning rate (now {rate:g}: --lr), or clip gradients: --set optimizer.clip=1",
                    )
                position.step += 1
                where = {"epoch": position.epoch, "epochs": settings.epochs, "step": position.step, "steps": steps}
                show(where | {"loss": loss, "lr": rate})
                if signal:
                    save_now()
                    raise Stopped(signal, saved=folder is not None)

            seconds = max(now() - began, 1e-9)
            speed = distributed.world_size() * (position.images - images_before) / seconds
            row = finish_epoch(learner, position, model, ema) | {
                "lr": learning_rate(recipe, (position.epoch + 1) * steps - 1, steps),
                "time": {
                    "seconds": round(seconds, 3),
                    "images_per_second": round(speed, 1),
                    "waiting": round(waited, 3),
                },
            }
            if folder and distributed.rank() == 0:
                append_jsonl(folder / "metrics.jsonl", row)
            position.epoch, position.step, position.loss, position.good = position.epoch + 1, 0, 0.0, 0
            show(row | {"epochs": settings.epochs})
            best = position.best_step == position.epoch * steps
            due = best or position.epoch == settings.epochs or position.epoch % settings.checkpoint_every == 0
            if due:
                save_now()
            (signal,) = distributed.agree(received.number)
            if signal:
                if not due:
                    save_now()
                raise Stopped(signal, saved=folder is not None)
    if ema is not None and not folder:
        model.load_state_dict(ema.state_dict())
    return position


def wrap(model: nn.Module, *, compiled: bool) -> nn.Module:
    """Return the model wrapped for training: compiled, and with gradients averaged over processes."""
    wrapped: nn.Module = torch.compile(model) if compiled else model  # type: ignore[assignment]
    if distributed.world_size() == 1:
        return wrapped
    # We synchronize buffers ourselves: batch-norm statistics are those of process 0, shared before evaluation.
    known = signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # its old name
    option: dict[str, Any] = {name: False}
    return DistributedDataParallel(wrapped, **option)


def synced_last(wrapped: nn.Module, chunks: list[Any]) -> Iterator[Any]:
    """Yield the chunks of a batch; processes average their gradients only in the last one."""
    for chunk in chunks:
        if chunk is not chunks[-1] and isinstance(wrapped, DistributedDataParallel):
            with wrapped.no_sync():
                yield chunk
        else:
            yield chunk


def check_step(loss: Tensor, norm: Tensor, signal: int, *, may_overflow: bool) -> tuple[float, bool, int]:
    """Return the loss, whether to skip the step, and the signal to stop for, agreed on by all processes.

    This waits for the device. If gradients may overflow (float16), an infinite norm is not bad: the scaler skips that
    step itself, and lowers its scale.
    """
    finite = loss.isfinite() if may_overflow else loss.isfinite() & norm.isfinite()
    agreed = distributed.maximum(torch.stack([(~finite).float(), torch.full_like(loss, signal)]))
    value, bad, stop = torch.cat([loss[None].float(), agreed]).tolist()
    return value, bool(bad), int(stop)


def finish_epoch(learner: Learner, position: Position, model: nn.Module, ema: nn.Module | None) -> dict[str, Any]:
    """Validate, record the best epoch, and return the row for the log."""
    row: dict[str, Any] = {"epoch": position.epoch + 1, "loss": position.loss / max(position.good, 1)}
    for network in (model, ema):
        if network is not None:
            distributed.share_buffers(network)
    row |= learner.validate(ema if ema is not None else model)
    if "score" in row and (position.best is None or row["score"] > position.best):
        position.best, position.best_step = row["score"], (position.epoch + 1) * learner.steps
    return row


def clip_gradients(model: nn.Module, longest: float) -> Tensor:
    """Clip the gradient of all parameters to the norm `longest` (0: no clipping); return the norm before."""
    if longest:
        return nn.utils.clip_grad_norm_(model.parameters(), longest)
    return nn.utils.get_total_norm(p.grad for p in model.parameters() if p.grad is not None)


def copy_all(to: list[Tensor], source: list[Tensor]) -> None:
    """Copy tensors into others in place. The lists may be empty: most ViTs have no buffers."""
    if to:
        torch._foreach_copy_(to, source)


def seed_step(seed: int, device: torch.device) -> None:
    """Seed a step like `torch.manual_seed`, which on a CPU wastes half a millisecond on stack traces about GPUs.

    >>> seed_step(5, torch.device("cpu"))
    >>> torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))
    True
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def step_seed(seed: int, epoch: int, step: int) -> int:
    """Return the seed for dropout and the like, for each step and process, so that there is no random state to save."""
    mixed = 0
    for key in (seed, epoch, step, distributed.rank()):
        mixed = (mixed * 0x9E3779B97F4A7C15 + key + 1) & 0x7FFFFFFFFFFFFFFF
    return mixed
