"""Packs the state of an optimizer for a checkpoint, and unpacks it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpaco.errors import UserError


def pack_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state of an optimizer as named tensors, and the rest ready for JSON."""
    states = optimizer.state_dict()["state"].items()
    tensors = {f"{index}.{name}": value for index, values in states for name, value in values.items()}
    return tensors, {"kind": type(optimizer).__name__, "groups": _sizes(optimizer)}


def unpack_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Load a state from `pack_optimizer` into an optimizer of the same model, which keeps its rates and decays."""
    if (meta["kind"], meta["groups"]) != (type(optimizer).__name__, _sizes(optimizer)):
        raise UserError(
            f"the checkpoint is from {meta['kind']} with parameters in groups of {meta['groups']}, this run has "
            f"{type(optimizer).__name__} with groups of {_sizes(optimizer)}",
            "resume with the recipe the run was started with, or choose another --out",
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        like = parameters[int(index)]
        if tensor.shape == like.shape:  # in the memory layout of its parameter
            tensor = torch.empty_like(like, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _sizes(optimizer: Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]
