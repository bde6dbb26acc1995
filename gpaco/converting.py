"""convert(): other people's checkpoints, into weights as safetensors or into a run that can be used like our own."""

import hashlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpaco import layouts
from gpaco.confined import SECONDS
from gpaco.errors import EnvironmentProblem, UserError
from gpaco.layouts import Layout
from gpaco.progress import Say
from gpaco.torchfile import NO_NEED

if TYPE_CHECKING:
    from torch import Tensor

    from gpaco.settings import Recipe

_READER = "import sys; sys.path.append(sys.argv[1]); from gpaco.confined import main; main()"
_HOME = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Foreign:
    """What is in a file of `torch.save`.

    Args:
        path: of the file.
        sha256: of the file.
        tensors: by their names in it.
        names: every global that it names.
        where: the key that the tensors were under, "" if the file is nothing but them.
        keys: what else is there.
        values: the texts and numbers among it, those of its "args" on top.
    """

    path: Path
    sha256: str
    tensors: "dict[str, Tensor]"
    names: list[str]
    where: str
    keys: list[str]
    values: dict[str, Any]


def convert(
    file: Path | str,
    out: Path | str,
    *,
    model: str | None = None,
    recipe: "Path | str | Recipe | None" = None,
    settings: Sequence[str] = (),
    classes: Path | str | None = None,
    counts: Path | str | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """Write what is in a file of `torch.save` to `out`, and return what was found: names in it, layout, model.

    Args:
        file: .pth, .pt, .bin or .tar; nothing that it says is executed.
        out: a name with .safetensors for weights (of a backbone, for --weights), a new folder for a run.
        model: the network, where it cannot be told from names and shapes.
        recipe: name or file of a recipe: settings of a run that its checkpoint does not tell.
        settings: changes such as "method.alpha=0.02"; of a run.
        classes: file with a class name per line; without, classes are numbered from 0.
        counts: file with the training images of each class: numbers in order, or rows class,count.
        say: is told every decision in a line.
    """
    path, target = Path(file), Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} is there already", "choose another --out, or remove it")
    foreign = read(path, say)
    layout = layouts.layout_of({name: tuple(value.shape) for name, value in foreign.tensors.items()}, foreign.where)
    under = f", under {foreign.where!r}" if foreign.where else ""
    say(f"{path.name}: {len(foreign.tensors)} tensors{under}; nothing in it was executed")
    say(f"names in it: {', '.join(foreign.names)}")
    name = model or layout.model
    say(f"read as {layout.title}{f', {name}' if name else ''}")
    if left := [*filter(None, [layouts.groups(layout.dropped)]), *foreign.keys]:
        say(f"left out: {', '.join(left)}")
    if target.suffix == ".safetensors":
        _write_weights(foreign, layout, name, target, say)
    elif layout.run:
        from gpaco.imported import write_run

        write_run(foreign, layout, name, target, recipe, settings, classes, counts, say)
    else:
        raise UserError(
            f"{path.name} holds weights and not a trained run of PaCo or GPaCo",
            f"give --out a name with .safetensors, such as {path.name.split('.')[0]}.safetensors",
        )
    return {
        "file": str(path),
        "sha256": foreign.sha256,
        "names": foreign.names,
        "layout": layout.title,
        "model": name,
        "tensors": len(layout.backbone) + (len(layout.run) if target.is_dir() else 0),
        "dropped": layout.dropped,
        "out": str(target),
        "kind": "run" if target.is_dir() else "weights",
    }


def read(path: Path, say: Say = lambda line: None) -> Foreign:
    """The tensors of a file, read by a process of its own that can do nothing else (gpaco/confined.py).

    Of a file that is refused, `say` is told every global that it names.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}", "give the path of a .pth, .pt, .bin or .tar file")
    with tempfile.TemporaryDirectory() as folder:
        tensors = Path(folder) / "tensors.safetensors"
        command = [sys.executable, "-I", "-S", "-c", _READER, str(_HOME), str(path.resolve()), str(tensors)]
        process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        said = _report(path, process, say)
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            found = dict(sorted(load_file(tensors).items()))
        except SafetensorError as error:
            raise _refused(path, " ".join(str(error).split())[:200]) from error
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    values = {**said.get("values", {}), **said.get("settings", {})}
    return Foreign(path, digest, found, said["names"], said["where"], said.get("keys", []), values)


def _report(path: Path, process: "subprocess.CompletedProcess[bytes]", say: Say) -> dict[str, Any]:
    if process.returncode == -signal.SIGXCPU:
        raise _refused(path, f"reading it takes more than {SECONDS} seconds")
    if process.returncode:
        last = process.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit {process.returncode}"]
        if "PermissionError" in last[0]:
            raise EnvironmentProblem(f"no permission to read {path}", "change the permissions of the file")
        raise _refused(path, f"the process that read it ended with {last[0][:200]!r}")
    said: dict[str, Any] = json.loads(process.stdout)
    if "system" in said:
        folder = tempfile.gettempdir()
        raise EnvironmentProblem(
            f"cannot read {path} or write to {folder}: {str(said['system']).lower()}",
            "free some space there, or name another folder in the environment variable TMPDIR",
        )
    if "refused" in said:
        if said["names"]:
            shown = (name if name.isprintable() else repr(name) for name in said["names"])
            say(f"names in it: {', '.join(shown)}")
        if NO_NEED in said["refused"]:
            raise UserError(
                f"{path} is {NO_NEED}", f"nothing was executed or written; use it as it is: --weights {path}"
            )
        raise _refused(path, said["refused"])
    return said


def _refused(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path} is refused: {reason}",
        "nothing was executed or written; ask for model.state_dict() saved by torch.save, or for safetensors",
    )


def _write_weights(foreign: Foreign, layout: Layout, name: str, target: Path, say: Say) -> None:
    from safetensors.torch import save

    from gpaco import backbones
    from gpaco.files import write_atomic

    tensors = {new: foreign.tensors[old].contiguous() for new, old in layout.backbone.items()}
    if name and (misfit := backbones.misfit(name, {key: tuple(value.shape) for key, value in tensors.items()})):
        raise UserError(
            f"{foreign.path} does not fit {name}: {misfit}", "choose with --model the network that it was saved from"
        )
    about = {"model": name, "source": foreign.path.name, "source_sha256": foreign.sha256}
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, save(tensors, metadata=about))
    if name:
        say(f"to start from them: gpaco train DATA --out RUN --model {name} --weights {target}")
    else:
        say("which model they are of cannot be told (--model NAME checks one); names were kept as they are")
