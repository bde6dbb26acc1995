"""Mixed precision: what the setting means, and where it saves time."""

from contextlib import AbstractContextManager, nullcontext

import torch

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, amp: str) -> AbstractContextManager[object]:
    """Return a context in which operations have the precision `amp`: off, bf16 or fp16."""
    return torch.autocast(device.type, dtype=_TYPES[amp]) if amp in _TYPES else nullcontext()


def bf16_is_fast(device: torch.device) -> bool:
    """Return whether bf16 takes about half the time of float32: on a CPU with matrix units for it (Intel AMX)."""
    find = getattr(torch.cpu, "get_capabilities", None)  # not in older versions of torch
    return device.type == "cpu" and find is not None and bool(find().get("amx_bf16"))
