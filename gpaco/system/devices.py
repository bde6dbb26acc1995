"""Where tensors live."""

import os

import torch

from gpaco.errors import UserError


def choose_device(name: str | None = None) -> torch.device:
    """The named device, or a CUDA one if there is, else the CPU; with several processes, each its own.

    Apple's (mps) has to be asked for: nothing here was tried on it.
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
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    return device
