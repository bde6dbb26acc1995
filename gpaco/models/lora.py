"""Low-rank adapters (LoRA, Hu et al., 2021): frozen linear layers, each with a small trained update.

Checkpoints of a run hold both, so that it can resume; for prediction, the updates are merged into plain layers.
"""

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.errors import UserError

# Updates are scaled by STRENGTH / rank, so that the best learning rate does not depend on the rank.
STRENGTH = 8.0
_DOWN, _UP = "lora_down", "lora_up"


class Adapted(nn.Module):
    """A linear layer W and a low-rank update: x -> x W' + b + scale * x down' up', where up starts at 0.

    In the state dict, the layer keeps its names `weight` and `bias`; the update is `lora_down` (rank, in) and `lora_up`
    (out, rank).
    """

    bias: nn.Parameter | None

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.scale = STRENGTH / rank
        # The same tensors, not copies. The attribute `weight` includes the update: see below.
        self._parameters["weight"] = cast(nn.Parameter, layer.weight)
        self.register_parameter("bias", layer.bias)
        self.lora_down = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_up = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_down, a=math.sqrt(5))
        self.training = layer.training

    @property
    def weight(self) -> Tensor:
        """The weight with its update, for attention that reads it instead of calling the layer (BEiT, Swin v2)."""
        return cast(Tensor, self._parameters["weight"]) + self.scale * (self.lora_up @ self.lora_down)

    def forward(self, x: Tensor) -> Tensor:
        change = F.linear(F.linear(x, self.lora_down), self.lora_up)
        return F.linear(x, cast(Tensor, self._parameters["weight"]), self.bias) + self.scale * change


def adapt(backbone: nn.Module, rank: int) -> list[nn.Parameter]:
    """Add an update of this rank to every linear layer that is larger than the update; return all updates.

    In ViTs, these are the layers of attention (qkv, proj) and of the MLPs. The caller decides what else is trained.
    """
    changes: list[nn.Parameter] = []
    for parent in list(backbone.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and rank * (layer.in_features + layer.out_features) < layer.weight.numel():
                adapted = Adapted(layer, rank)
                setattr(parent, name, adapted)
                changes += [adapted.lora_down, adapted.lora_up]
    if not changes:
        raise UserError(
            f"{type(backbone).__name__} has no linear layers large enough for adapters of rank {rank}",
            "choose a transformer (--model vit_small_patch16_224 --weights hub downloads one), or --train last-block",
        )
    return changes


@torch.no_grad()
def merged(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of the same network with plain layers: every update is added to its weight."""
    plain = {key: value for key, value in state.items() if not key.endswith((f".{_DOWN}", f".{_UP}"))}
    for key, down in state.items():
        layer, _, last = key.rpartition(".")
        if last == _DOWN:
            change = STRENGTH / len(down) * (state[f"{layer}.{_UP}"] @ down)
            plain[f"{layer}.weight"] = plain[f"{layer}.weight"] + change
    return plain
