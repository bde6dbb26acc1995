"""Mixed precision: what the setting means, and where it saves time."""

from contextlib import AbstractContextManager, nullcontext

import torch

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, amp: str) -> AbstractContextManager[object]:
    """Return a context in which operations have the precision `amp`: off, bf16 or fp16."""
    return torch.autocast(device.type, dtype=_TYPES[amp]) if amp in _TYPES else nullcontext()


def bf16_is_fast(device: torch.device) -> bool:
    """Return whether bf16 is clearly faster than float32: on a CPU with instructions for it (AMX or AVX512-BF16)."""
    find = getattr(torch.cpu, "get_capabilities", None)  # not in older versions of torch
    if device.type != "cpu" or find is None:
        return False
    found = find()
    return bool(found.get("amx_bf16") or found.get("avx512_bf16"))
