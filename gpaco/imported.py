"""A run out of a checkpoint of the released PaCo or GPaCo code: `gpaco evaluate` and `gpaco predict` take it as one."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gpaco import backbones, checkpoint
from gpaco import recipe as recipes
from gpaco.classification import describe
from gpaco.data.rows import read_text
from gpaco.data.samples import Samples, Splits
from gpaco.errors import UserError, nearest
from gpaco.files import write_atomic
from gpaco.layouts import Layout
from gpaco.run import build_model
from gpaco.settings import Recipe
from gpaco.training import Progress, environment

if TYPE_CHECKING:
    from gpaco.converting import Foreign

Say = Callable[[str], None]
# Settings of a recipe that the released scripts keep under another name, in the "args" of a checkpoint.
_ARGS = {"alpha": "method.alpha", "temperature": "method.temperature", "smoothing": "method.label_smoothing"}
_ARGS |= {"drop_path": "model.drop_path", "input_size": "model.size"}
_INATURALIST = 8142  # classes; the released models for it have a mean and a deviation of their own


def write_run(
    foreign: "Foreign",
    layout: Layout,
    model: str,
    folder: Path,
    recipe: Path | str | Recipe | None,
    settings: Sequence[str],
    classes: Path | str | None,
    counts: Path | str | None,
    say: Say,
) -> None:
    """Write a run folder: recipe.toml and one checkpoint, with the tensors in our names."""
    if not model:
        raise UserError(
            f"which network {foreign.path.name} is of cannot be told from its shapes", "name it: --model resnet50"
        )
    tensors = {f"backbone.{new}": foreign.tensors[old] for new, old in layout.backbone.items()}
    tensors |= {new: foreign.tensors[old] for new, old in layout.run.items()}
    resolved = recipe_of(foreign, layout, model, tensors, recipe, settings, say)
    names, numbers = classes_of(tensors["centres.weight"].shape[0], classes, counts)
    if numbers is None:
        say("class counts are not in the file: without --counts FILE there are no many, medium and few")
    about = about_of(resolved, layout, names, numbers)
    mean, std = (", ".join(f"{value:g}" for value in about[key]) for key in ("mean", "std"))
    say(f"images: {about['size']} pixels, mean {mean}, deviation {std}  (--recipe or --set model.mean= overrides)")
    if len(names) == _INATURALIST and recipe is None and not resolved.model.mean:
        say(
            "8,142 classes: the released models for iNaturalist have a mean and a deviation of their own: --recipe NAME"
        )
    network = build_model(about)
    backbones.fill(network, tensors, foreign.path)
    extra = {} if numbers is None else {"loss.centre_share": centre_share(numbers, resolved)}
    state = {
        "progress": vars(Progress(epoch=resolved.train.epochs)),
        "environment": environment(torch.device("cpu")),
        "about": about,
    }
    home = folder.resolve()  # "." has no name
    work = home.with_name(f".{home.name}.writing")
    home.parent.mkdir(parents=True, exist_ok=True)
    try:
        checkpoint.save(work / "checkpoints", 0, {"model": network.state_dict(), "extra": extra}, state)
        write_atomic(work / "recipe.toml", recipes.dumps(resolved))
        home.mkdir(exist_ok=True)
        for path in sorted(work.iterdir()):  # an empty folder stays the same one: somebody may be in it
            os.replace(path, home / path.name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"to see how good it is: gpaco evaluate {folder} DATA")


def recipe_of(
    foreign: "Foreign",
    layout: Layout,
    model: str,
    tensors: dict[str, Tensor],
    given: Path | str | Recipe | None,
    settings: Sequence[str],
    say: Say,
) -> Recipe:
    """The recipe of the run: what was given, or else assumed, and on top what the file says and its tensors show."""
    base = given if isinstance(given, Recipe) else Recipe(foreign.path.name) if given is None else recipes.load(given)
    if given is not None and base.model.name.split(".")[0] != model.split(".")[0]:
        raise UserError(
            f"the recipe {base.name} is for {base.model.name}, the checkpoint is of {model}", "choose another --recipe"
        )
    assumed: dict[str, Any] = {}
    if given is None:
        assumed = {"method.alpha": base.method.alpha, "method.temperature": base.method.temperature}
        assumed["method.prior"] = "none" if layout.projector == "mae" else "counts"  # as in the released scripts
        if layout.projector == "mae":
            assumed["model.interpolation"] = "bicubic"
    said = {name: foreign.values[arg] for arg, name in _ARGS.items() if _is_number(foreign.values.get(arg))}
    changed = {change.partition("=")[0].strip().replace("loss.", "method.") for change in settings}
    for name, value in assumed.items():
        if name not in said and name not in changed:
            say(f"{name} = {value} is assumed: the file does not say  (--recipe or --set {name}= overrides)")
    seen: dict[str, Any] = {"model.name": model}
    if given is None:
        seen |= {"method.name": layout.method, "method.start": "released"}
    if isinstance(epoch := foreign.values.get("epoch"), int) and epoch >= 0:
        # The scripts for ViTs write the number of the last epoch, from 0; the others how many there were.
        seen["train.epochs"] = epoch + 1 if layout.projector == "mae" else max(epoch, 1)
    if layout.projector != "none":
        last = max(name for name in tensors if re.fullmatch(r"projector\.\d\.weight", name))
        seen |= {"model.projector": layout.projector, "model.dim": tensors[last].shape[0]}
    if queue := [name for name in layout.dropped if re.fullmatch(r"(module\.)?queue", name)]:
        seen["method.memory"] = foreign.tensors[queue[0]].shape[0]
    try:
        recipe = recipes.change(replace(base, stage=()), assumed | said | seen)
    except UserError as error:
        raise UserError(f"{foreign.path}: {error.cause}", error.remedy) from None
    note = f"converted from {foreign.path.name}, SHA-256 {foreign.sha256}"
    return recipes.override(replace(recipe, source=replace(recipe.source, note=note)), settings)


def about_of(recipe: Recipe, layout: Layout, names: tuple[str, ...], numbers: list[int] | None) -> dict[str, Any]:
    """What the model has to know about itself, as after training, but with what is not known left open."""
    nothing = np.zeros(0, np.int64)
    small = recipe.model.name in backbones.SMALL_IMAGES
    none = Samples(
        nothing, names, images=np.zeros((0, 1, 1, 3), np.uint8) if small else None, paths=None if small else ()
    )
    about = describe(recipe, Splits(none, None, None, "a checkpoint"))
    return about | {"counts": numbers, "projector": layout.projector}


def centre_share(counts: list[int], recipe: Recipe) -> Tensor:
    """w of each class (C,), to first order: 1 / (1 + alpha * positives), the other view and its share of the memory.

    A run of ours keeps the mean over its steps; off from that by less than alpha / 4, relatively.
    """
    share = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    return (1 / (1 + recipe.method.alpha * (1 + share * recipe.method.memory))).float()


def classes_of(
    number: int, classes: Path | str | None, counts: Path | str | None
) -> tuple[tuple[str, ...], list[int] | None]:
    """Names of the classes, numbers from 0 unless given, and the training images of each, None unless given."""
    names = tuple(map(str, range(number))) if classes is None else tuple(_lines(Path(classes)))
    if counts is None:
        numbers = None
    else:
        found = read_counts(Path(counts))
        if classes is None and not all(name.isdigit() for name in found):
            names = tuple(found)
        if unknown := [name for name in found if name not in set(names)]:
            raise UserError(
                f"{counts} has a class {unknown[0]!r} that the model has not{nearest(unknown[0], names)}",
                "give the names of its classes with --classes FILE, or correct the file",
            )
        numbers = [found.get(name, 0) for name in names]
    if len(names) != number or len(set(names)) != number:
        where = counts if classes is None else classes
        raise UserError(
            f"the model has {number} classes, {where} has {len(set(names))} names", "give each class a name, in order"
        )
    return names, numbers


def read_counts(path: Path) -> dict[str, int]:
    """Training images by class, from a number per line, rows of class,count, or a list of images with their labels."""
    lines = _lines(path)
    if all(line.isdigit() for line in lines):
        return {str(c): int(line) for c, line in enumerate(lines)}
    for pattern in (r"(.*\S)\s*,\s*(\d+)", r"(.*\S)\s+(\d+)"):
        rows = [re.fullmatch(pattern, line) for line in lines]
        first = 1 if rows[0] is None else 0  # a head
        pairs = [(row[1], int(row[2])) for row in rows[first:] if row is not None]
        if len(pairs) != len(lines) - first or not pairs:
            continue
        if "," not in pattern:
            return Counter(str(label) for _, label in pairs)
        if len(dict(pairs)) == len(pairs):
            return dict(pairs)
    raise UserError(
        f"{path} does not say how many training images each class has",
        "write a number per line, or rows of class,count, each class once; or give the list that was trained on",
    )


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise UserError(f"there is no file {path}", "give a text file with a line for each class")
    lines = [line.strip() for line in read_text(path)[0].splitlines()]
    if not any(lines):
        raise UserError(f"{path} is empty", "give a text file with a line for each class")
    return [line for line in lines if line]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
