"""Low-rank adapters (LoRA, Hu et al., 2021): frozen linear layers, each with a trained change of few parameters.

A run keeps both in its checkpoints, so that it can go on; who only predicts gets plain layers with the change added.
"""

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.errors import UserError

# A change counts STRENGTH / rank: its size, and with it the learning rate, does not depend on the rank.
STRENGTH = 8.0
_DOWN, _UP = "lora_down", "lora_up"


class Adapted(nn.Module):
    """A linear layer W and a change of low rank: x -> x W' + b + scale * x down' up', where up starts at 0.

    In the state dict the layer keeps its names, `weight` and `bias`; the change is there as `lora_down`, (rank, in),
    and `lora_up`, (out, rank).
    """

    bias: nn.Parameter | None

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.scale = STRENGTH / rank
        # The same tensors, not copies. As an attribute, `weight` is something else: see below.
        self._parameters["weight"] = cast(nn.Parameter, layer.weight)
        self.register_parameter("bias", layer.bias)
        self.lora_down = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_up = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_down, a=math.sqrt(5))
        self.training = layer.training

    @property
    def weight(self) -> Tensor:
        """The weight with its change, for attention that takes it instead of calling the layer (BEiT, Swin v2)."""
        return cast(Tensor, self._parameters["weight"]) + self.scale * (self.lora_up @ self.lora_down)

    def forward(self, x: Tensor) -> Tensor:
        change = F.linear(F.linear(x, self.lora_down), self.lora_up)
        return F.linear(x, cast(Tensor, self._parameters["weight"]), self.bias) + self.scale * change


def adapt(backbone: nn.Module, rank: int) -> list[nn.Parameter]:
    """Give every linear layer of the backbone a change of this rank, where that is smaller than the layer; all of them.

    In ViTs those are the layers of attention (qkv, proj) and of the MLPs. What else trains is for the caller to say.
    """
    if rank < 1:
        raise UserError(f"the rank of an adapter must be at least 1, got {rank}", "--set train.lora_rank=4")
    layers = [
        (parent, name, layer)
        for parent in backbone.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, nn.Linear) and rank * (layer.in_features + layer.out_features) < layer.weight.numel()
    ]
    if not layers:
        raise UserError(
            f"{type(backbone).__name__} has no linear layers that could get adapters of rank {rank}",
            "choose a ViT, DeiT or Swin, or train another part: --train last-block, --train all",
        )
    changes = []
    for parent, name, layer in layers:
        adapted = Adapted(layer, rank)
        setattr(parent, name, adapted)
        changes += [adapted.lora_down, adapted.lora_up]
    return changes


@torch.no_grad()
def merged(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of the same network with plain layers: every change is added to its weight."""
    plain = {key: value for key, value in state.items() if not key.endswith((f".{_DOWN}", f".{_UP}"))}
    for key, down in state.items():
        layer, _, last = key.rpartition(".")
        if last == _DOWN:
            change = STRENGTH / len(down) * (state[f"{layer}.{_UP}"] @ down)
            plain[f"{layer}.weight"] = plain[f"{layer}.weight"] + change
    return plain
