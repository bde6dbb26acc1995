"""Turns a checkpoint of the released PaCo or GPaCo code into a run, for `gpaco evaluate`, `gpaco predict` and so on."""

import csv
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpaco.data.readers.rows import read_text
from gpaco.data.samples import Samples, Splits
from gpaco.errors import UserError, nearest
from gpaco.models import backbones
from gpaco.models.weights.foreign import Foreign
from gpaco.models.weights.layouts import Layout
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.system.files import write_atomic
from gpaco.system.progress import Say
from gpaco.system.words import plural, some
from gpaco.tasks.classification.card import Card, build_model, describe
from gpaco.training import checkpoint
from gpaco.training.card import write_card
from gpaco.training.resume import Position, environment

# Names in the "args" of a released checkpoint, and our settings for them.
_ARGS = {"alpha": "method.alpha", "temperature": "method.temperature", "smoothing": "method.label_smoothing"}
_ARGS |= {"drop_path": "model.drop_path", "input_size": "model.size"}
_INATURALIST = 8142  # classes; the released models for it use their own mean and standard deviation


def write_run(
    foreign: Foreign,
    layout: Layout,
    model: str,
    folder: Path,
    recipe: Path | str | None,
    settings: Sequence[str],
    classes: Path | str | None,
    counts: Path | str | None,
    say: Say,
) -> None:
    """Write a run folder: recipe.toml and one checkpoint, with the tensors renamed."""
    if not model:
        raise UserError(f"{foreign.path.name} does not name its network", "give it, for example --model resnet50")
    tensors = {f"backbone.{new}": foreign.tensors[old] for new, old in layout.backbone.items()}
    tensors |= {new: foreign.tensors[old] for new, old in layout.run.items()}
    resolved = recipe_of(foreign, layout, model, tensors, recipe, settings, say)
    names, numbers = classes_of(tensors["centers.weight"].shape[0], classes, counts)
    if numbers is None:
        say("the file has no class counts: without --counts FILE, there are no groups (many, medium, few)")
    card = card_of(resolved, layout, names, numbers)
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (card.mean, card.std))
    say(f"images: {card.size} pixels, mean {mean}, std {std}  (--recipe or --set model.mean= overrides)")
    if len(names) == _INATURALIST and recipe is None and not resolved.model.mean:
        say("8,142 classes: the released models for iNaturalist use their own mean and std: --recipe NAME")
    network = build_model(card)
    backbones.fill(network, tensors, foreign.path)
    extra = {} if numbers is None else {"loss.center_share": center_share(numbers, resolved)}
    state = {
        "position": vars(Position(epoch=resolved.train.epochs)),
        "environment": environment(torch.device("cpu")),
        "card": write_card(card),
    }
    home = folder.resolve()  # "." has no name
    work = home.with_name(f".{home.name}.writing")
    home.parent.mkdir(parents=True, exist_ok=True)
    try:
        work.mkdir(exist_ok=True)
        checkpoint.save(work / "checkpoints", 0, {"model": network.state_dict(), "extra": extra}, state)
        write_atomic(work / "recipe.toml", recipes.dumps(resolved))
        home.mkdir(exist_ok=True)
        # Fill an empty folder instead of replacing it: it may be the current directory.
        for path in sorted(work.iterdir()):
            os.replace(path, home / path.name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"to evaluate it: gpaco evaluate {folder} DATA")


def recipe_of(
    foreign: Foreign,
    layout: Layout,
    model: str,
    tensors: dict[str, Tensor],
    given: Path | str | None,
    settings: Sequence[str],
    say: Say,
) -> Recipe:
    """Return the recipe of the run: the given one, or the defaults, with the settings in the checkpoint."""
    base = Recipe(foreign.path.name) if given is None else recipes.load(given)
    if given is not None and base.model.name.split(".")[0] != model.split(".")[0]:
        raise UserError(
            f"the recipe {base.name} is for {base.model.name}, the checkpoint is of {model}", "choose another --recipe"
        )
    vit = layout.projector == "mae"
    # Later values override those before them, and --set overrides all.
    known: dict[str, Any] = {"method.name": layout.method, "method.start": "released"} if given is None else {}
    known |= {name: foreign.values[arg] for arg, name in _ARGS.items() if type(foreign.values.get(arg)) in (int, float)}
    if isinstance(epoch := foreign.values.get("epoch"), int):
        # Scripts for ViTs store the index of the last epoch, others the number of epochs.
        known["train.epochs"] = epoch + 1 if vit else max(epoch, 1)
    known["model.name"] = model
    if layout.projector != "none":
        last = max(name for name in tensors if re.fullmatch(r"projector\.\d\.weight", name))
        known |= {"model.projector": layout.projector, "model.dim": tensors[last].shape[0]}
    if queue := [name for name in layout.dropped if re.fullmatch(r"(module\.)?queue", name)]:
        known["method.memory"] = foreign.tensors[queue[0]].shape[0]
    if given is None:
        assumed: dict[str, Any] = {"method.alpha": base.method.alpha, "method.temperature": base.method.temperature}
        assumed |= {"method.prior": "none", "model.interpolation": "bicubic"} if vit else {"method.prior": "counts"}
        changed = {change.partition("=")[0].strip() for change in settings}
        for name, value in assumed.items():
            if name not in known.keys() | changed:
                say(f"{name} = {value} is assumed, since it is not in the file  (--recipe or --set {name}= overrides)")
        known = assumed | known
    note = f"converted from {foreign.path.name}, SHA-256 {foreign.sha256}"
    base = replace(base, stage=(), source=replace(base.source, note=note))
    try:
        recipe = recipes.change(base, known)
    except UserError as error:
        raise UserError(f"{foreign.path}: {error.cause}", error.remedy) from None
    return recipes.override(recipe, settings)


def card_of(recipe: Recipe, layout: Layout, names: tuple[str, ...], numbers: list[int] | None) -> Card:
    """Return the card as after training, with unknown fields left empty."""
    one_each = Samples(np.arange(len(names)), names, images=np.zeros((len(names), 1, 1, 3), np.uint8))
    card = describe(recipe, Splits(one_each, None, None, "a checkpoint"))
    counts = None if numbers is None else tuple(numbers)
    whole = recipe.model.name in backbones.SMALL_IMAGES and not recipe.model.resize
    return replace(card, counts=counts, shown=None, images={}, whole=whole, projector=layout.projector)


def center_share(counts: list[int], recipe: Recipe) -> Tensor:
    """Return the share of the centers in the loss by class (C,), to first order: 1 / (1 + alpha * positives).

    The positives are the other view and the share of the memory. Our own runs store the mean over steps, which differs
    by less than a fraction of alpha / 4.
    """
    share = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    return (1 / (1 + recipe.method.alpha * (1 + share * recipe.method.memory))).float()


def classes_of(
    number: int, classes: Path | str | None, counts: Path | str | None
) -> tuple[tuple[str, ...], list[int] | None]:
    """Return the class names (by default, numbers from 0) and the training images per class (by default, None)."""
    found = None if counts is None else read_counts(Path(counts))
    if classes is not None:
        names = tuple(_lines(Path(classes)))
    elif found is None or all(name.isdigit() for name in found):
        names = tuple(map(str, range(number)))
    else:
        names = tuple(found)
    if unknown := [name for name in found or () if name not in set(names)]:
        raise UserError(
            f"{counts} has a class {unknown[0]!r} that is not in the model{nearest(unknown[0], names)}",
            "give the names of the classes with --classes FILE, or fix the file",
        )
    if len(names) != number or len(set(names)) != number:
        raise UserError(
            f"the model has {number} classes, {classes or counts} has {len(set(names))} names",
            "give each class a name, in order",
        )
    if missing := [name for name in names if found is not None and name not in found]:
        raise UserError(
            f"{counts} has no number of training images for {plural(len(missing), 'class')}: {some(missing)}",
            "write a row class,count for every class of the model, 0 for a class without training images",
        )
    return names, None if found is None else [found[name] for name in names]


def read_counts(path: Path) -> dict[str, int]:
    """Return the training images per class, from rows class,count with or without a header."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(_lines(path))]
    if not rows[0][-1].isdigit():
        rows = rows[1:]
    counts = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    if not rows or len(counts) < len(rows):
        raise UserError(
            f"{path} does not have the number of training images per class",
            "write rows class,count, with each class once, for example: 0,1280",
        )
    return counts


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise UserError(f"there is no file {path}", "give a text file with one line per class")
    lines = [line.strip() for line in read_text(path)[0].splitlines()]
    if not any(lines):
        raise UserError(f"{path} is empty", "give a text file with one line per class")
    return [line for line in lines if line]
