"""convert(): other people's checkpoints, into weights as safetensors or into a run that can be used like our own."""

import argparse
import hashlib
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpaco.errors import UserError
from gpaco.models.weights import layouts
from gpaco.models.weights.layouts import Layout
from gpaco.system.progress import Say

if TYPE_CHECKING:
    from torch import Tensor

_STATES = ("state_dict", "model", "model_state_dict")  # keys of a checkpoint that may hold the tensors


@dataclass(frozen=True)
class Foreign:
    """The content of a file that `torch.save` wrote.

    Args:
        path: of the file.
        sha256: of the file.
        tensors: by their names in it.
        keys: of everything else in it.
        values: the strings and numbers among it, together with those of its "args".
    """

    path: Path
    sha256: str
    tensors: "dict[str, Tensor]"
    keys: list[str]
    values: dict[str, Any]


def convert(
    file: Path | str,
    out: Path | str,
    *,
    model: str | None = None,
    recipe: Path | str | None = None,
    settings: Sequence[str] = (),
    classes: Path | str | None = None,
    counts: Path | str | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """Convert a file that `torch.save` wrote, and return what was found in it.

    Args:
        file: .pth, .pt, .bin or .tar; no code in it is run.
        out: a name with .safetensors for weights (of a backbone, for --weights), a new folder for a run.
        model: name of the network, if the file does not say.
        recipe: name or file of a recipe: settings of a run that its checkpoint does not have.
        settings: changes such as "method.alpha=0.02"; for a run.
        classes: file with a class name per line; without it, classes are numbered from 0.
        counts: CSV file with the training images of each class, in rows class,count.
        say: is called with a line for every decision.
    """
    from gpaco.models import backbones

    path, target = Path(file), Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} is there already", "choose another --out, or remove it")
    foreign = read(path)
    shapes = {name: tuple(value.shape) for name, value in foreign.tensors.items()}
    layout = layouts.layout_of(shapes, str(foreign.values.get("arch") or foreign.values.get("model") or ""))
    name = model or (layout.model if backbones.is_known(layout.model) else "")
    say(f"{path.name}: {len(foreign.tensors)} tensors, read as {layout.title}{f', {name}' if name else ''}")
    if left := [*filter(None, [layouts.groups(layout.dropped)]), *foreign.keys]:
        say(f"left out: {', '.join(left)}")
    if target.suffix == ".safetensors":
        _write_weights(foreign, layout, name, target, say)
    elif layout.run:
        from gpaco.tasks.classification.released import write_run

        write_run(foreign, layout, name, target, recipe, settings, classes, counts, say)
    else:
        raise UserError(
            f"{path.name} holds weights and not a trained run of PaCo or GPaCo",
            f"give --out a name with .safetensors, such as {path.name.split('.')[0]}.safetensors",
        )
    return {
        "file": str(path),
        "sha256": foreign.sha256,
        "layout": layout.title,
        "model": name,
        "tensors": len(layout.backbone) + (len(layout.run) if target.is_dir() else 0),
        "dropped": layout.dropped,
        "out": str(target),
        "kind": "run" if target.is_dir() else "weights",
    }


def read(path: Path) -> Foreign:
    """Read a file with `torch.load(weights_only=True)`: what is not a tensor, a plain value or `args` is refused."""
    if not path.is_file():
        raise UserError(f"there is no file {path}", "give the path of a .pth, .pt, .bin or .tar file")
    if path.suffix == ".safetensors":
        raise UserError(f"{path} needs no conversion", f"use it as it is: --weights {path}")
    import numpy as np
    import torch

    scalar = np.float64(0).__reduce__()[0]
    safe: list[Any] = [
        (scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")
    ]  # before numpy 2, and since
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
    # A copy of each: several may share memory, and safetensors wants them apart.
    tensors = {
        str(name): value.detach().clone(memory_format=torch.contiguous_format)
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }
    if not tensors:
        raise UserError(
            f"{path} has no tensors by name, at its top or under {', '.join(_STATES)}",
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
    """The error for a file that torch does not load, with the names of functions and classes that it asks for."""
    from torch.serialization import get_unsafe_globals_in_checkpoint

    try:
        names = sorted(get_unsafe_globals_in_checkpoint(path))
    except Exception:  # not a zip file, or damaged
        names = []
    names = names or re.findall(r"(?:GLOBAL |but got <class ')([\w.]+)", str(error))
    if not names:
        reason = " ".join(str(error).split("WeightsUnpickler error:")[-1].split())[:200]
        return UserError(
            f"{path} is damaged, or torch.save did not write it: {reason or type(error).__name__}",
            "get the file again, or ask for safetensors",
        )
    return UserError(
        f"{path} is refused: loading it would run code or build objects ({', '.join(names)[:300]})",
        "nothing of it was run; if you trust it, load it with torch.load(weights_only=False) and save its state_dict()",
    )


def _write_weights(foreign: Foreign, layout: Layout, name: str, target: Path, say: Say) -> None:
    from safetensors.torch import save

    from gpaco.models import backbones
    from gpaco.system.files import write_atomic

    tensors = {new: foreign.tensors[old] for new, old in layout.backbone.items()}
    if name and (misfit := backbones.misfit(name, {key: tuple(value.shape) for key, value in tensors.items()})):
        raise UserError(
            f"{foreign.path} does not fit {name}: {misfit}", "choose with --model the network that it was saved from"
        )
    about = {"model": name, "source": foreign.path.name, "source_sha256": foreign.sha256}
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, save(tensors, metadata=about))
    say(f"to start from them: gpaco train DATA --out RUN --model {name or 'NAME'} --weights {target}")
    if not name:
        say("the file does not say which model they are of; --model NAME checks that they fit")
