"""From what was asked for to a complete recipe and its data: what is read, split, left out and guessed."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from gpaco import methods
from gpaco import recipe as recipes
from gpaco.data.checking import refuse_leaks
from gpaco.data.inspecting import find_bad, without
from gpaco.data.longtail import long_tailed
from gpaco.data.reading import read
from gpaco.data.samples import Splits, in_memory
from gpaco.data.splitting import with_test, with_validation
from gpaco.data.suggesting import suggest
from gpaco.errors import UserError, nearest
from gpaco.metrics import groups
from gpaco.settings import SECTIONS, Data, Recipe, Stage

Say = Callable[[str], None]
LOOKED_AT = 20_000  # files; hashing and decoding more would keep people waiting for minutes

# Flags of the command line and keyword arguments of train(): the setting each stands for.
FLAGS = {
    "task": "train.task",
    "method": "method.name",
    "model": "model.name",
    "weights": "model.weights",
    "size": "model.size",
    "epochs": "train.epochs",
    "batch_size": "train.batch_size",
    "lr": "optimiser.lr",
    "seed": "train.seed",
    "long_tail": "data.long_tail",
    "validation": "data.validation",
    "sampler": "train.sampler",
    "train": "train.part",
    "amp": "train.amp",
    "workers": "train.workers",
    "ghost_batch": "model.ghost_batch",
    "on_bad_image": "data.on_bad_image",
    "compile": "train.compile",
}


def requested(
    what: Path | str | Recipe, recipe: Path | str | Recipe | None, settings: Sequence[str], flags: dict[str, Any]
) -> tuple[Recipe, set[str]]:
    """The recipe as asked for, and which of its settings somebody has chosen."""
    path = ""
    if isinstance(what, Recipe) or (recipe is None and Path(what).suffix == ".toml"):
        recipe = what
    else:
        path = str(what)
    base = Recipe() if recipe is None else recipe if isinstance(recipe, Recipe) else recipes.load(recipe)
    given = set() if recipe is None else {f"{s}.{k}" for s in SECTIONS for k in asdict(getattr(base, s))}
    unknown = set(flags) - set(FLAGS)
    if unknown:
        word = sorted(unknown)[0]
        raise UserError(f"there is no option {word!r}{nearest(word, FLAGS)}", f"options are {', '.join(FLAGS)}")
    changes = [f"{FLAGS[flag]}={value}" for flag, value in flags.items() if value is not None]
    changes += list(settings)
    if path:
        base = replace(base, data=replace(base.data, path=path))
    given |= {change.partition("=")[0].strip().replace("loss.", "method.") for change in changes}
    try:
        return recipes.override(base, changes), given
    except UserError as error:  # a flag is called as it was typed
        cause = error.cause
        for flag, value in flags.items():
            cause = cause.replace(f"--set {FLAGS[flag]}={value}:", f"--{flag.replace('_', '-')} {value}:")
        raise UserError(cause, error.remedy) from None


def splits_of(
    recipe: Recipe, data: Path | str | None = None, say: Say = lambda line: None, *, thorough: bool = False
) -> Splits:
    """The parts that a recipe asks for; with `data`, that data as it is, to evaluate on.

    `thorough` reads every file of no more than LOOKED_AT: for leakage between parts, and whether validation and test
    images can be decoded, which would otherwise show after the last epoch.
    """
    settings = recipe.data
    path = settings.path if data is None else str(data)
    if not path:
        raise UserError("there is no data to train on", "give a folder, a table, a list, or the word digits")
    if data is not None:
        return in_memory(read(path, allow_empty_classes=True, allow_outside=settings.allow_outside))
    splits = read(
        path,
        root=settings.root or None,
        allow_empty_classes=settings.allow_empty_classes,
        allow_outside=settings.allow_outside,
    )
    if splits.test is None and splits.val is None:
        splits = with_test(splits, seed=settings.seed)
    if settings.long_tail > 1:
        chosen = long_tailed(splits.train.labels, settings.long_tail, profile=settings.profile, seed=settings.seed)
        splits = replace(splits, train=splits.train.subset(chosen))
    if settings.validation:
        splits = with_validation(splits, settings.validation, settings.seed)
    if settings.on_bad_image == "skip":
        bad = {name: find_bad(part) for name, part in splits.parts() if part.paths is not None}
        for name, part in splits.parts():
            for index, reason in bad.get(name, []):
                say(f"left out: {part.names[index]}: {reason}")
        splits = without(splits, bad)
    small = sum(len(part) for _, part in splits.parts()) <= LOOKED_AT
    if thorough and not small:
        say("too many files to look at each before training; `gpaco check` does")
    if thorough and small and not settings.allow_leakage:
        splits = refuse_leaks(splits)
    if thorough and small:
        refuse_bad(splits)
    expect(splits, settings)
    for note in (f"data: {splits.reader}", *splits.notes):
        say(note)
    return in_memory(splits)


def refuse_bad(splits: Splits) -> None:
    for name, part in (("validation", splits.val), ("test", splits.test)):
        bad = find_bad(part) if part is not None and part.paths is not None else []
        if part is not None and bad:
            index, reason = bad[0]
            raise UserError(
                f"{len(bad)} of the {name} images cannot be read, the first {part.names[index]}: {reason}",
                "mend or remove them (gpaco check lists all), or leave them out: --on-bad-image skip",
            )


def expect(splits: Splits, settings: Data) -> None:
    """Compare the data with what the recipe says there should be."""
    images, counts = len(splits.train), splits.train.counts
    found = tuple(
        int((groups(counts, settings.many, settings.few) == name).sum()) for name in ("many", "medium", "few")
    )
    remedy = "check that it is the right data, or change what the recipe expects: --set data.expect_images=0"
    if settings.expect_images and images != settings.expect_images:
        raise UserError(f"the recipe expects {settings.expect_images:,} training images, here are {images:,}", remedy)
    if settings.expect_groups and found != settings.expect_groups:
        raise UserError(f"the recipe expects {settings.expect_groups} classes in its groups, here are {found}", remedy)


def resolve(recipe: Recipe, given: set[str], splits: Splits, device: torch.device, say: Say) -> Recipe:
    """The recipe with every open setting filled in from the data; each guess is said with what overrides it."""
    chosen = recipe.train.batch_size if "train.batch_size" in given else None
    guess = suggest(splits, gpu=device.type != "cpu", batch_size=chosen)
    method = recipe.method.name
    short = {value: f"--{key.replace('_', '-')}" for key, value in FLAGS.items()}
    guesses: dict[str, Any] = {
        "model.name": guess["model"],
        "model.size": guess["size"],
        "train.batch_size": guess["batch_size"],
        "train.epochs": guess["epochs"],
        "optimiser.lr": guess["lr"],
        "method.memory": guess["memory"],
        "views.first": guess["views"][0],
        "views.second": guess["views"][1],
        "train.workers": 0 if splits.train.images is not None else 2,
    }
    for key in ("model.name", "views.first", "views.second"):
        section, name = key.split(".")
        if getattr(getattr(recipe, section), name) == "auto":
            given = given - {key}
    if recipe.model.size == 0:
        given = given - {"model.size"}
    if recipe.train.workers < 0:
        given = given - {"train.workers"}
    if method in methods.WITHOUT_PROJECTOR:
        guesses.pop("method.memory")
    changes = {key: value for key, value in guesses.items() if key not in given}
    for key, value in changes.items():
        say(f"{key} = {value}  ({short.get(key, f'--set {key}=')} overrides)")
    recipe = recipes.override(recipe, [f"{key}={value}" for key, value in changes.items()])
    if "schedule.warmup" not in given and recipe.schedule.warmup > recipe.train.epochs / 6:
        recipe = recipes.override(recipe, [f"schedule.warmup={recipe.train.epochs // 6}"])
    size = min(recipe.train.batch_size, len(splits.train))
    if size != recipe.train.batch_size:
        recipe = recipes.override(recipe, [f"train.batch_size={size}"])
    return with_default_stages(recipe)


def with_default_stages(recipe: Recipe) -> Recipe:
    """SupCon alone has no classifier: a second stage trains one on the features as they then are."""
    if recipe.method.name != "supcon" or recipe.stage:
        return recipe
    linear = (
        ("method", "name", "balanced-softmax"),
        ("train", "part", "head"),
        ("train", "epochs", max(recipe.train.epochs // 3, 1)),
        ("views", "second", ""),
    )
    return replace(recipe, stage=(Stage("features"), Stage("classifier", linear)))
