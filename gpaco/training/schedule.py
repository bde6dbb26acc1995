"""The learning rate as a function of the step, and parameter groups with their own rate and weight decay."""

from math import cos, pi
from typing import Any

import torch
from torch import nn

from gpaco.errors import UserError
from gpaco.recipes.settings import Optimizer, Recipe

# Learned tables that are not weight matrices: like biases and norms, they are not decayed if decay_bias is off.
_TABLES = ("pos_embed", "cls_token", "reg_token", "dist_token", "absolute_pos_embed", "relative_position_bias_table")
# Modules of a timm ViT before its blocks.
_STEM = ("patch_embed", "pos_embed", "cls_token", "reg_token", "dist_token", "norm_pre")


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0 at the start of training.

    With e the epoch of the step, W = warmup, E = epochs, and s going from 1 to 0:

        cosine         s = (1 + cos(pi (e - W + 1) / (E - W + 1))) / 2        min_lr + (lr - min_lr) s
        poly           s = (1 - e / E) ^ power                                 min_lr + (lr - min_lr) s
        step           lr times `factor` for each of `steps` that is <= e
        step-released  lr times `factor` for each of `steps` that is < e, as in the released CIFAR scripts
        constant       lr

    Warm-up multiplies by (e + 1) / W while e < W; in step-released, while e <= W, so that one epoch runs at
    lr (W + 1) / W. With `per` = "step", e is the fractional position t in epochs: warm-up is t / W, from 0, and cosine
    follows (t - W) / (E - W), as in MAE.

    >>> from gpaco.recipes.recipe import change
    >>> recipe = change(Recipe(), {"train.epochs": 5, "optimizer.lr": 0.8, "schedule.warmup": 2})
    >>> [round(learning_rate(recipe, e, steps_per_epoch=1), 3) for e in range(5)]
    [0.4, 0.8, 0.683, 0.4, 0.117]
    """
    schedule, epochs, lr = recipe.schedule, recipe.train.epochs, recipe.optimizer.lr
    name, warmup, min_lr = schedule.name, schedule.warmup, schedule.min_lr
    whole = schedule.per == "epoch"
    position: float = step // steps_per_epoch if whole else min(step / steps_per_epoch, epochs)
    begun = 1 if whole else 0  # an epoch counts once it has started
    rising = position < warmup
    warm = min((position + begun) / warmup, 1.0) if rising else 1.0

    if name == "cosine":
        if rising:
            return lr * warm
        share = (1 + cos(pi * (position - warmup + begun) / (epochs - warmup + begun or 1))) / 2
        return min_lr + (lr - min_lr) * share
    if name == "poly":
        left: float = (1 - position / epochs) ** schedule.power
        return warm * (min_lr + (lr - min_lr) * left)
    if name == "step":
        return warm * lr * schedule.factor ** sum(edge <= position for edge in schedule.steps)
    if name == "step-released":
        warm = (position + begun) / warmup if warmup and position <= warmup else 1.0
        return warm * lr * schedule.factor ** sum(edge < position for edge in schedule.steps)
    return warm * lr


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group, scaled by its "lr_scale"."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)


def parameter_groups(model: nn.Module, settings: Optimizer) -> list[dict[str, Any]]:
    """Return the trainable parameters in groups, each with its "lr", "lr_scale" and "weight_decay".

    Without `decay_bias`, as in MAE, biases, norms, tokens and position tables are not decayed. With `layer_decay`,
    parameters at depth d of a ViT with L blocks train at layer_decay ^ (L + 1 - d) of the rate: the patch embedding at
    depth 0, block i (from 0) at i + 1, everything after the blocks at the full rate. A method may give parameters their
    own `rate`, a further factor, and `weight_decay`.
    """
    cached = isinstance(getattr(model, "backbone", None), nn.Identity)  # only a head trains, on stored features
    depth_of, last = _depths(model) if settings.layer_decay != 1 and not cached else ({}, 0)
    groups: dict[tuple[int, float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        depth = depth_of.get(name, last)
        spared = not settings.decay_bias and (parameter.ndim <= 1 or name.rpartition(".")[2] in _TABLES)
        decay = 0.0 if spared else getattr(parameter, "weight_decay", settings.weight_decay)
        rate = getattr(parameter, "rate", 1.0)
        scale = rate * settings.layer_decay ** (last - depth)
        group: dict[str, Any] = {"params": [], "lr": settings.lr * scale, "lr_scale": scale, "weight_decay": decay}
        groups.setdefault((depth, decay, rate), group)["params"].append(parameter)
    if not groups:
        raise UserError("the model has no parameters to train", "train more of it: train.part = 'head' or 'all'")
    return [groups[key] for key in sorted(groups)]


def _depths(model: nn.Module) -> tuple[dict[str, int], int]:
    """Return the depth of each parameter before or in the blocks of a ViT, and that of all others."""
    found = {
        name.removesuffix("blocks"): len(module)
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == "blocks" and isinstance(module, (nn.Sequential, nn.ModuleList))
    }
    modules = {name for name, _ in model.named_modules()}
    if len(found) != 1 or f"{next(iter(found))}patch_embed" not in modules:
        raise UserError(
            "layer-wise decay needs a ViT (a patch embedding and one sequence of blocks)",
            "set optimizer.layer_decay = 1, or choose a model such as vit_base_patch16_224",
        )
    ((prefix, count),) = found.items()
    depths = {}
    for name, _ in model.named_parameters():
        first, *rest = name.removeprefix(prefix).split(".")
        if name.startswith(prefix) and first in _STEM:
            depths[name] = 0
        elif name.startswith(f"{prefix}blocks."):
            depths[name] = int(rest[0]) + 1
    return depths, count + 1


def make_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    settings = recipe.optimizer
    groups = parameter_groups(model, settings)
    if settings.name == "adamw":
        return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.betas[0], settings.betas[1]))
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, nesterov=settings.nesterov)
