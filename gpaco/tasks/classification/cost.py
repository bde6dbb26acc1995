"""What an answer of a model, or of an ensemble, costs; tasks/latency.py measures the time."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from gpaco.tasks.classification.predictor import Predictor


@torch.no_grad()
def cost(predictors: Sequence[Predictor]) -> dict[str, Any]:
    """Return the number of parameters of all models, and the multiplications and additions for one image."""
    operations = FlopCounterMode(display=False)
    with operations:
        for one in predictors:
            one(_image(one))
    used = [[p for name, p in one.model.named_parameters() if not _unused(name)] for one in predictors]
    return {
        "models": len(predictors),
        "parameters": sum(p.numel() for parameters in used for p in parameters),
        "gflops": round(operations.get_total_flops() / 1e9, 6),
    }


def _unused(name: str) -> bool:
    """Whether a parameter is only for training."""
    return name.startswith(("projector.", "prototypes."))


def _image(predictor: Predictor) -> torch.Tensor:
    size = predictor.card.view.size
    return torch.zeros(1, 3, size, size, dtype=torch.uint8, device=predictor.mean.device)
