"""Which device tensors live on."""

import torch

from gpaco.errors import UserError
from gpaco.system.distributed import local_rank


def choose_device(name: str | None = None) -> torch.device:
    """Return the named device; by default CUDA if available, else the CPU. Each process gets its own GPU.

    Apple's mps is never the default: it is untested.
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"there is no device {name!r}", "devices are cpu, cuda (cuda:1 and so on) and mps") from error
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"there is no device {name!r} here: {str(error).splitlines()[0]}", "--device cpu") from error
    if name == "cuda":
        device = torch.device("cuda", local_rank())
        torch.cuda.set_device(device)
    return device
