"""From what was asked for to scenes and a complete recipe: what is read, held back, left out and guessed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpaco import distributed
from gpaco import recipe as recipes
from gpaco.data.inspecting import TOLERATED, read_bad
from gpaco.data.random import permutation
from gpaco.data.samples import BadImage, some
from gpaco.display import told
from gpaco.errors import UserError, nearest
from gpaco.preparing import BAD_IMAGES, FLAGS, LOOKED_AT
from gpaco.run import has_begun
from gpaco.segmentation.losses import METHODS
from gpaco.segmentation.network import crop_step
from gpaco.segmentation.reading import read_scenes
from gpaco.segmentation.scenes import Scenes, SceneSplits, pixel_counts
from gpaco.settings import Recipe

Say = Callable[[str], None]

# Settings of classification. One that is not at its default asks for something that would not happen.
WITHOUT_EFFECT = (
    *("data.root", "data.long_tail", "data.allow_empty_classes", "data.expect_groups"),
    *("model.ghost_batch", "model.head_std", "model.size", "model.resize", "model.projector", "model.hidden"),
    *(
        "model.pool",
        "model.interpolation",
        "views.first",
        "views.second",
        "views.crop_scale",
        "views.flip",
        "views.erase",
    ),
    *("method.label_smoothing", "method.mixup", "method.cutmix", "method.contrast", "method.tune_prior"),
    *("views.erase", "method.momentum_keys", "train.sampler", "train.part", "train.features"),
)


def prepare(
    recipe: Recipe, given: set[str], folder: Path, device: torch.device, say: Say
) -> tuple[Recipe, SceneSplits]:
    """The complete recipe and its scenes, with the pixels of training counted; each guess is said."""
    refuse_unused(recipe)
    splits = scene_splits(recipe, say)
    if has_begun(folder) and recipe.data.on_bad_image == "skip":
        splits = without(splits, read_bad(folder / BAD_IMAGES))
    elif not has_begun(folder):
        splits = looked_at(splits, recipe, say)
    resolved = resolve(recipe, given, splits, device, say)
    pixels = pixel_counts(splits.train, told(say, "counting pixels"))
    if not pixels.any():
        raise UserError("no training pixel belongs to a class", "`gpaco check DATA --task segmentation` tells more")
    return resolved, replace(splits, pixels=tuple(pixels.tolist()))


def overrides(key: str) -> str:
    """What of the command line sets "section.key"."""
    short = {value: f"--{flag.replace('_', '-')}" for flag, value in FLAGS.items()}
    return short.get(key, f"--set {key}=")


def refuse_unused(recipe: Recipe) -> None:
    """Settings that segmentation does not have are errors, not ignored."""
    name = recipe.method.name
    if name not in METHODS:
        raise UserError(
            f"segmentation has no method {name!r}{nearest(name, METHODS)}", f"methods are {', '.join(METHODS)}"
        )
    for key in WITHOUT_EFFECT:
        section, word = key.split(".")
        value, usual = (getattr(getattr(whole, section), word) for whole in (recipe, Recipe()))
        if value != usual:
            raise UserError(f"{key} = {value!r} has no effect on segmentation", f"leave out {overrides(key)}")


def scene_splits(recipe: Recipe, say: Say = lambda line: None) -> SceneSplits:
    """The parts that a recipe asks for."""
    settings = recipe.data
    if not settings.path:
        raise UserError("there is no data to train on", "give a folder of pictures and masks")
    splits = read_scenes(settings.path)
    if splits.val is None and splits.test is None:
        splits = _hold_back(splits, "test", 0.2, settings.seed)
    if splits.val is None and settings.validation:
        splits = _hold_back(splits, "val", settings.validation, settings.seed)
    if settings.expect_images and len(splits.train) != settings.expect_images:
        raise UserError(
            f"the recipe expects {settings.expect_images:,} training pictures, here are {len(splits.train):,}",
            "check that it is the right data, or change what the recipe expects: --set data.expect_images=0",
        )
    for note in (f"data: {splits.reader}", *splits.notes):
        say(note)
    if not len(splits.train):
        raise UserError("there are no training pictures", "check the path: is it the right folder?")
    return splits


def _hold_back(splits: SceneSplits, name: str, share: float, seed: int) -> SceneSplits:
    """The same with a seeded part of training taken out of it."""
    order = permutation(seed, 0, len(splits.train))
    held = max(1, round(share * len(order)))
    if held >= len(order):
        raise UserError(
            f"{len(order)} pictures are too few to hold some back",
            "add pictures, give the parts as folders, or leave validation out: --validation 0",
        )
    train, part = splits.train.subset(np.sort(order[held:])), splits.train.subset(np.sort(order[:held]))
    note = f"{name}: {held} of {len(order)} training pictures held back, seed {seed}"
    parts: dict[str, Any] = {name: part}
    return replace(splits, train=train, notes=(*splits.notes, note), **parts)


def looked_at(splits: SceneSplits, recipe: Recipe, say: Say) -> SceneSplits:
    """The same after every pair was decoded once: bad ones are an error, or left out; so are leaks between parts."""
    from gpaco.segmentation.checking import inspect, leaks

    skip = recipe.data.on_bad_image == "skip"
    if not skip and sum(len(part) for _, part in splits.parts()) > LOOKED_AT:
        say("too many files to look at each before training; `gpaco check --task segmentation` does")
        return splits
    found = inspect(splits, told(say, "looking at pictures and masks"))
    parts = dict(splits.parts())
    bad = [
        BadImage(name, parts[name].names[i], str(one.reason))
        for name, part in found.items()
        for i, one in enumerate(part)
        if one.reason is not None
    ]
    if bad and not skip:
        raise UserError(
            f"{len(bad)} pairs cannot be used, the first: {bad[0].reason}" if len(bad) > 1 else bad[0].reason,
            "mend it (`gpaco check --task segmentation` lists all), or leave such pairs out: --on-bad-image skip",
        )
    total = sum(map(len, parts.values()))
    if len(bad) > max(TOLERATED * total, 1):
        raise UserError(
            f"{len(bad)} of {total} pairs cannot be used, more than {TOLERATED:.1%}; the first: {bad[0].reason}",
            "mend or remove them; `gpaco check --task segmentation` lists them all",
        )
    same = leaks(splits, found)
    if same and not splits.published and not recipe.data.allow_leakage:
        raise UserError(
            f"{len(same)} pictures are in more than one part, the first: {some(same[0], 3)}",
            "take them out of one part, or allow it: --set data.allow_leakage=true",
        )
    for one in bad:
        say(f"left out: {one.reason}")
    return without(splits, bad)


def without(splits: SceneSplits, bad: Sequence[BadImage]) -> SceneSplits:
    """The same without these pairs. Those that are gone do no harm."""
    gone = {(one.split, one.name) for one in bad}
    parts: dict[str, Any] = {
        name: part.subset([i for i, own in enumerate(part.names) if (name, own) not in gone])
        for name, part in splits.parts()
    }
    return replace(splits, bad=tuple(bad), **parts)


def suggest(splits: SceneSplits, *, gpu: bool = False) -> dict[str, Any]:
    """Settings for these scenes, by "section.key": the released ones as far as the machine takes them."""
    height, width = splits.train.load_image(0).shape[:2]
    base = [min(min(height, width), 512 if gpu else 360), min(max(height, width), 2048)]
    side = max(64, base[0] // 32 * 32)
    return {
        "model.name": "deeplabv3plus-resnet50" if gpu else "deeplabv3plus-resnet18",
        "segmentation.crop": [side, side],
        "segmentation.base_size": base,
        "train.batch_size": 16 if gpu else 4,
        "train.epochs": 80 if gpu else 20,
    }


RELEASED = {  # of the released configurations; nothing that depends on the data
    "optimiser.lr": 0.01,
    "optimiser.weight_decay": 5e-4,
    "schedule.name": "poly",
    "schedule.power": 0.9,
    "schedule.min_lr": 1e-4,
    "schedule.per": "step",
    "schedule.warmup": 0,
    "method.alpha": 0.01,
    "method.temperature": 0.07,
}


def resolve(recipe: Recipe, given: set[str], splits: SceneSplits, device: torch.device, say: Say) -> Recipe:
    """The recipe with every open setting filled in; each guess is said with what overrides it."""
    still_open = {"model.name": recipe.model.name == "auto", "train.workers": recipe.train.workers < 0}
    still_open |= {f"segmentation.{key}": not getattr(recipe.segmentation, key) for key in ("crop", "base_size")}
    usual = {key: value for key, value in RELEASED.items() if key not in given}
    if "optimiser.lr" in given and "schedule.min_lr" in usual:
        usual["schedule.min_lr"] = min(1e-4, recipe.optimiser.lr / 100)
    guesses = suggest(splits, gpu=device.type != "cpu") | {"train.workers": 2}
    guesses = {key: value for key, value in guesses.items() if key not in given or still_open.get(key, False)}
    for key, value in guesses.items():
        say(f"{key} = {value}  ({overrides(key)} overrides)")
    if usual:
        say(f"as released: {', '.join(f'{key} = {value}' for key, value in usual.items())}")
    recipe = recipes.override(recipe, [f"{key}={value}" for key, value in (guesses | usual).items()])
    for one in recipes.stages(recipe):
        check_sizes(one)
    return recipe


def check_sizes(recipe: Recipe) -> None:
    """Raise now what the first step would raise, in other words."""
    step, crop = crop_step(recipe.model.name), recipe.segmentation.crop
    if any(side % step for side in crop):
        fitting = [max(step, side // step * step) for side in crop]
        raise UserError(
            f"{recipe.model.name} takes crops whose sides are multiples of {step}, got {list(crop)}",
            f"--set segmentation.crop={fitting}".replace(" ", ""),
        )
    parts = distributed.world_size() * recipe.train.accumulate
    size = recipe.train.batch_size
    if size < 2 * parts or size % parts:
        raise UserError(
            f"batch norm needs two pictures at a time or more; a batch of {size} does not come in {parts} such parts",
            f"--batch-size {max(2, round(size / parts)) * parts}",
        )


def some_scenes(splits: SceneSplits, batch_size: int) -> SceneSplits:
    """A batch of training scenes and a few of the other parts, to try things out."""

    def few(scenes: Scenes | None, number: int) -> Scenes | None:
        return None if scenes is None else scenes.subset(range(min(number, len(scenes))))

    train = splits.train.subset(range(min(batch_size, len(splits.train))))
    return replace(splits, train=train, val=few(splits.val, 2), test=few(splits.test, 2))
