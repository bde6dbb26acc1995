"""The cost of a prediction: parameters, operations and time (the paper's Figure 1 a)."""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gpaco.system.words import plural

FILE = "latency.json"  # in a run folder
BATCHES = (1, 64)  # images at a time; the paper measures 64
_PIXELS = 12_000_000  # largest batch in pixels; 64 images of 384 x 384 have 9.4 million
_LEAST, _MOST = 5, 100  # repetitions
_TRAINING = {"projector", "prototypes", "aux"}  # layers used only in training


@torch.no_grad()
def cost(model: nn.Module, height: int, width: int) -> tuple[int, int]:
    """Return the parameters used in prediction, and the operations for one image of this size.

    A multiplication and an addition count as two operations.
    """
    from torch.utils.flop_counter import FlopCounterMode  # it loads triton: 70 MB

    device = next(model.parameters()).device
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, height, width, device=device))
    used = (p.numel() for name, p in model.named_parameters() if not _TRAINING & set(name.split(".")))
    return sum(used), counter.get_total_flops()


@torch.inference_mode()
def measure(model: nn.Module, height: int, width: int, *, seconds: float = 2.0) -> dict[str, Any]:
    """Return milliseconds per image at each batch size with their spread, parameters, and FLOPs per image.

    Images are random and already in memory. Every batch size is repeated for about `seconds`, at least five times,
    after a warm-up. "median", "low" and "high" are the quartiles of the repetitions. A batch with too many pixels is
    not measured (None).
    """
    model.eval()
    device = next(model.parameters()).device
    parameters, flops = cost(model, height, width)
    result: dict[str, Any] = {"height": height, "width": width, **place(device)}
    result |= {"parameters": parameters, "flops": flops, "batches": {}}
    for batch in BATCHES:
        result["batches"][str(batch)] = None
        if batch == 1 or batch * height * width <= _PIXELS:
            images = torch.rand(batch, 3, height, width, device=device)
            times = repeated(partial(model, images), device, seconds)
            low, median, high = (1000 / batch * np.percentile(times, (25, 50, 75))).tolist()
            result["batches"][str(batch)] = {"median": median, "low": low, "high": high, "repetitions": len(times)}
    return result


def place(device: torch.device) -> dict[str, Any]:
    """Return where times are measured: the device and the number of CPU threads."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, "threads": torch.get_num_threads()}


def format_device(row: dict[str, Any]) -> str:
    """Return the device of a row, as text."""
    return f"cpu, {plural(row['threads'], 'thread')}" if row["device"] == "cpu" else str(row["device"])


def read_measured(folder: Path) -> dict[str, Any] | None:
    """Return the stored measurement of a run; None without one."""
    path = folder / FILE
    return dict(json.loads(path.read_text())) if path.is_file() else None


def repeated(action: Callable[[], object], device: torch.device, seconds: float) -> list[float]:
    """Return the seconds that an action takes, for each repetition."""

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
