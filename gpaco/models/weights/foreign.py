"""Reads checkpoints of other code, which may be pickled, without executing code in them."""

import argparse
import hashlib
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint

from gpaco.errors import UserError

_STATES = ("state_dict", "model", "model_state_dict")  # keys of a checkpoint that may hold the tensors


@dataclass(frozen=True)
class Foreign:
    """The content of a file that `torch.save` wrote."""

    path: Path
    sha256: str
    tensors: dict[str, Tensor]  # by their names in the file
    keys: list[str]  # of everything else in the file
    values: dict[str, Any]  # strings and numbers in the file and in its "args"


def read_foreign(path: Path) -> Foreign:
    """Read a file without executing code in it: only tensors, plain values and `args` are allowed."""
    if not path.is_file():
        raise UserError(f"there is no file {path}", "give the path of a .pth, .pt, .bin or .tar file")
    if path.suffix == ".safetensors":
        raise UserError(f"{path} needs no conversion", f"use it as it is: --weights {path}")
    scalar = np.float64(0).__reduce__()[0]
    safe: list[Any] = [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]  # numpy 1 and 2
    safe += [argparse.Namespace, np.dtype, *(type(np.dtype(kind)) for kind in ("?", "i4", "i8", "f4", "f8"))]
    with torch.serialization.safe_globals(safe):
        try:
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except (OSError, MemoryError):
            raise
        except Exception as error:  # a damaged file raises almost anything
            raise _refused(path, error) from error
    found = found if isinstance(found, dict) else {}
    where = next((key for key in _STATES if isinstance(found.get(key), dict)), None)
    state = found if where is None else found[where]
    # Copied, because safetensors does not accept tensors that share memory.
    tensors = {
        str(name): value.detach().clone(memory_format=torch.contiguous_format)
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }
    if not tensors:
        raise UserError(
            f"{path} has no named tensors at the top level or under {', '.join(_STATES)}",
            "save the state dict alone: torch.save(model.state_dict(), FILE)",
        )
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    args = found.get("args")
    said = found | (vars(args) if isinstance(args, argparse.Namespace) else args if isinstance(args, dict) else {})
    values = {str(key): value for key, value in said.items() if isinstance(value, str | int | float)}
    keys = [str(key) for key in found if key != where and (where or key not in tensors)]
    return Foreign(path, digest, tensors, keys, values)


def _refused(path: Path, error: Exception) -> UserError:
    """Return the error for a file that torch refuses, with the functions and classes that it needs."""
    try:
        names = sorted(get_unsafe_globals_in_checkpoint(path))
    except Exception:  # not a zip file, or damaged
        names = []
    names = names or re.findall(r"(?:GLOBAL |but got <class ')([\w.]+)", str(error))
    if not names:
        reason = " ".join(str(error).split("WeightsUnpickler error:")[-1].split())[:200]
        reason = f": {reason}" if " " in reason else ""  # pickle may say only "101"
        return UserError(
            f"{path} is damaged, or was not written by torch.save{reason}",
            "download it again, or ask for safetensors",
        )
    return UserError(
        f"refused to load {path}: it would run code or build objects ({', '.join(names)[:300]})",
        "no code was executed; if you trust it, load it with torch.load(weights_only=False) and save its state_dict()",
    )
