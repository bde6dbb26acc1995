"""How long a model takes for an image, how large it is, and how many operations it needs (the paper's Figure 1 a)."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

BATCHES = (1, 64)  # images at a time; the paper measures 64
_LEAST, _MOST = 5, 100  # repetitions


@torch.inference_mode()
def measure(model: nn.Module, height: int, width: int, *, seconds: float = 2.0) -> dict[str, Any]:
    """Return milliseconds per image at each batch size with their spread, parameters, and FLOPs of one image.

    Images are random and already in memory. Every batch size is repeated for about `seconds`, at least five times,
    after one try to warm up. "median" is of the repetitions, "low" and "high" are their quartiles. A multiplication and
    an addition count as two operations.
    """
    device = next(model.parameters()).device
    model.eval()
    images = torch.rand(max(BATCHES), 3, height, width, device=device)
    with FlopCounterMode(display=False) as counter:
        model(images[:1])
    result: dict[str, Any] = {
        "height": height,
        "width": width,
        "device": device.type if device.type == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "flops": counter.get_total_flops(),
        "batches": {},
    }
    for batch in BATCHES:
        part = images[:batch]
        times = repeated(lambda part=part: model(part), device, seconds)  # type: ignore[misc]
        low, median, high = (1000 / batch * np.percentile(times, (25, 50, 75))).tolist()
        result["batches"][str(batch)] = {"median": median, "low": low, "high": high, "repetitions": len(times)}
    return result


def repeated(action: Callable[[], object], device: torch.device, seconds: float) -> list[float]:
    """Return the seconds that an action takes, time after time."""

    def finished() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    action()
    times: list[float] = []
    while len(times) < _LEAST or (sum(times) < seconds and len(times) < _MOST):
        finished()
        began = time.perf_counter()
        action()
        finished()
        times.append(time.perf_counter() - began)
    return times
