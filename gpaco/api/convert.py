"""convert(): turn checkpoints of other code into safetensors weights, or into a run like our own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save

from gpaco.errors import UserError
from gpaco.models import backbones
from gpaco.models.weights import layouts
from gpaco.models.weights.foreign import Foreign, read_foreign
from gpaco.models.weights.layouts import Layout
from gpaco.system.files import write_atomic
from gpaco.system.outputs import output_file, output_folder
from gpaco.system.progress import Say
from gpaco.tasks.classification.released import write_run


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
    """Convert a file written by `torch.save`, and return a summary.

    Args:
        file: .pth, .pt, .bin or .tar; code in it is not executed.
        out: a .safetensors file for the weights of a backbone (for --weights), or a new folder for a run.
        model: name of the network, if the file does not name it.
        recipe: name or file of a recipe, for settings that the checkpoint does not store.
        settings: changes such as "method.alpha=0.02", for a run.
        classes: file with one class name per line; without it, classes are numbered from 0.
        counts: CSV file with the number of training images per class, in rows class,count.
        say: called with a line for every decision.
    """
    path, target = Path(file), Path(out)
    if target.suffix == ".safetensors":
        if recipe or settings or classes or counts:
            raise UserError(
                "--recipe, --set, --classes and --counts are for runs", "leave them out, or give --out a folder"
            )
        output_file(target, {".safetensors": '"source_sha256":"'})
    else:
        output_folder(target)
    foreign = read_foreign(path)
    shapes = {name: tuple(value.shape) for name, value in foreign.tensors.items()}
    layout = layouts.layout_of(shapes, str(foreign.values.get("arch") or foreign.values.get("model") or ""))
    name = model or (layout.model if backbones.is_known(layout.model) else "")
    say(f"{path.name}: {len(foreign.tensors)} tensors, read as {layout.title}{f', {name}' if name else ''}")
    if left := [*filter(None, [layouts.groups(layout.dropped)]), *foreign.keys]:
        say(f"left out: {', '.join(left)}")
    if target.suffix == ".safetensors":
        _write_weights(foreign, layout, name, target, say)
    elif layout.run:
        write_run(foreign, layout, name, target, recipe, settings, classes, counts, say)
    else:
        raise UserError(
            f"{path.name} has weights, but is not a trained run of PaCo or GPaCo",
            f"give --out a .safetensors file, such as {path.name.split('.')[0]}.safetensors",
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


def _write_weights(foreign: Foreign, layout: Layout, name: str, target: Path, say: Say) -> None:
    tensors = {new: foreign.tensors[old] for new, old in layout.backbone.items()}
    if name and (misfit := backbones.misfit(name, {key: tuple(value.shape) for key, value in tensors.items()})):
        raise UserError(
            f"{foreign.path} does not fit {name}: {misfit}", "name the network it was saved from: --model NAME"
        )
    about = {"model": name, "source": foreign.path.name, "source_sha256": foreign.sha256}
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, save(tensors, metadata=about))
    say(f"to train from these weights: gpaco train DATA --out RUN --model {name or 'NAME'} --weights {target}")
    if not name:
        say("the file does not name its model; --model NAME checks that the weights fit")
