"""Settings of segmentation: supported ones, released values, and defaults for the data and the network."""

from contextlib import suppress
from typing import Any

import numpy as np
import torch

from gpaco.data.batches import steps_per_epoch
from gpaco.errors import UserError, nearest
from gpaco.recipes import recipe as recipes
from gpaco.recipes.request import overrides
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.progress import Say
from gpaco.system.words import in_lines
from gpaco.tasks.segmentation.losses import METHODS
from gpaco.tasks.segmentation.network import DEEPLAB, LEAST, crop_step, is_lite
from gpaco.tasks.segmentation.scenes import Scenes, SceneSplits

# The settings that segmentation supports, by section. Changing others is an error, since it would have no effect.
HAS: dict[str, set[str]] = {
    "data": {"path", "validation", "seed", "evaluate_on", "on_bad_image", "allow_leakage", "expect_images"},
    "model": {"name", "weights", "dim", "drop_path", "mean", "std"},
    "views": set(),
    "method": {"name", "alpha", "temperature"},
    "train": {
        *("task", "epochs", "batch_size", "accumulate", "amp", "ema", "compile", "workers"),
        *("timeout", "seed", "select", "report", "checkpoint_every", "keep", "log"),
    },
}
CROPS = 4800  # training crops of a run on a CPU
NO_WIDTH = ("unet", "unetplusplus", "manet", "linknet")  # decoders whose layers differ in width
TRANSFORMERS = (
    "swin",
    "mit_b",
    "pvt",
    "twins",
    "maxvit",
    "davit",
    "mvit",
    "hiera",
)  # in names of hierarchical encoders


def check_settings(recipe: Recipe) -> None:
    """Raise an error if a stage has a setting that has no effect on segmentation."""
    usual = Recipe()
    for one in recipes.stages(recipe):
        name, where = one.method.name, f" in stage {one.name!r}" if recipe.stage else ""
        if name not in METHODS:
            raise UserError(
                f"segmentation has no method {name!r}{where}{nearest(name, METHODS)}",
                f"methods are {', '.join(METHODS)}",
            )
        for key, (_, value) in recipes.diff(usual, one).items():
            section, word = key.split(".")
            given = f"{key} = {value!r}{where}"
            if name == "ce" and key == "segmentation.weight":
                raise UserError(f"{given} has no effect without the pixel loss", "leave it out, or --method gpaco")
            if word not in HAS.get(section, {word}):
                raise UserError(f"{given} has no effect on segmentation", f"leave out {overrides(key)}")


def usual_size(scenes: Scenes) -> tuple[int, int]:
    """Return the median height and width of up to nine images; if none is readable, those of the first that is."""
    spread = np.linspace(0, len(scenes) - 1, min(9, len(scenes))).round().astype(int).tolist()
    sizes: list[tuple[int, int]] = []
    for place, i in enumerate([*spread, *range(len(scenes))]):
        if sizes and place >= len(spread):
            break
        with suppress(UserError):
            height, width = scenes.load_image(i).shape[:2]
            sizes.append((height, width))
    if not sizes:
        raise UserError("no training image could be read", "run `gpaco check DATA --task segmentation`")
    return sorted(sizes, key=lambda size: (size[0] * size[1], size))[len(sizes) // 2]


def suggest(size: tuple[int, int], images: int, *, gpu: bool = False) -> dict[str, Any]:
    """Return settings for this many training images of this height and width, by "section.key".

    On a CPU, a run has about the same number of crops for any number of images: about 20 minutes at 360 x 480 pixels.
    """
    height, width = size
    base = [min(min(height, width), 512 if gpu else 360), min(max(height, width), 2048)]
    side = min(max(64, base[0] // 32 * 32), 512 if gpu else 256)
    found: dict[str, Any] = {"segmentation.crop": [side, side], "segmentation.base_size": base}
    if gpu:
        return found | {"train.batch_size": 16, "train.epochs": 80}
    epochs = min(max(round(CROPS / max(images, 1)), 5), 100)
    found |= {"train.batch_size": 4, "train.epochs": epochs}
    return found | {"segmentation.pixels": 1024}


# Values of the released configurations, by optimizer: convolutional networks train with SGD, Swin with AdamW.
RELEASED: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer.lr": 0.01, "optimizer.weight_decay": 5e-4, "schedule.power": 0.9, "schedule.min_lr": 1e-4},
    "adamw": {
        "optimizer.lr": 6e-5,
        "optimizer.weight_decay": 0.01,
        "optimizer.decay_bias": False,
        "schedule.power": 1.0,
        "schedule.min_lr": 0.0,
    },
}
ALIKE = {"schedule.name": "poly", "schedule.per": "step"}
OF_PIXELS = {"method.alpha": 0.01, "method.temperature": 0.07}
WARMUP = {"sgd": 0, "adamw": 1500}  # steps
# For EfficientNet-Lite, chosen on CamVid's validation split (docs/defaults.md, "The segmenter"): with a rate of 1e-3, a
# short run learns too little, and with the released weight, 1, the pixel loss slows down the class scores. Dice helps a
# short run to find rare classes. The auxiliary head takes time and does not help.
LITE_RATE, LITE_WEIGHT, LITE_DICE, LITE_AUX = 3e-3, 0.1, 1.0, 0.0


def released(recipe: Recipe, given: set[str], steps: int) -> dict[str, Any]:
    """Return the released values of settings that are not given, by "section.key"; `steps` is the number per epoch.

    Transformers, and EfficientNet-Lite, which has no released values, train with AdamW by default. Warm-up takes at
    most a sixth of training.
    """
    model, optimizer = recipe.model.name, recipe.optimizer.name
    lite = is_lite(model)
    if "optimizer.name" not in given and (lite or any(word in model for word in TRANSFORMERS)):
        optimizer = "adamw"
    warmup = round(min(WARMUP[optimizer] / steps, recipe.train.epochs / 6), 4)
    usual = {"optimizer.name": optimizer} | RELEASED[optimizer] | ALIKE | {"schedule.warmup": warmup}
    if lite:
        usual |= {"segmentation.dice": LITE_DICE, "segmentation.aux_weight": LITE_AUX}
    if lite and optimizer == "adamw":
        usual["optimizer.lr"] = LITE_RATE
    methods = {stage.method.name for stage in recipes.stages(recipe)}
    if "gpaco" in methods:
        usual |= OF_PIXELS
    if lite and methods == {"gpaco"}:
        usual["segmentation.weight"] = LITE_WEIGHT
    if "swin" in model:
        usual["model.drop_path"] = 0.3
    if "optimizer.lr" in given:
        usual["schedule.min_lr"] = min(usual["schedule.min_lr"], recipe.optimizer.lr / 100)
    return {key: value for key, value in usual.items() if key not in given}


def resolve(recipe: Recipe, given: set[str], splits: SceneSplits, device: torch.device, say: Say) -> Recipe:
    """Return the recipe with unset settings filled in, and print them."""
    still_open = {"train.workers": recipe.train.workers < 0}
    still_open |= {f"segmentation.{key}": not getattr(recipe.segmentation, key) for key in ("crop", "base_size")}
    guesses = suggest(usual_size(splits.train), len(splits.train), gpu=device.type != "cpu") | {"train.workers": 2}
    guesses = {key: value for key, value in guesses.items() if key not in given or still_open.get(key, False)}
    recipe = recipes.fill(recipe, guesses)
    usual = released(recipe, given, steps_per_epoch(len(splits.train), recipe.train.batch_size))
    source = "for EfficientNet-Lite" if is_lite(recipe.model.name) else "as released"
    for title, found in (("for this data", guesses), (source, usual)):
        if found:
            say(f"settings {title} (--set KEY=VALUE changes one):")
            for line in in_lines([f"{key} = {recipes.as_given(value)}" for key, value in found.items()]):
                say(line)
    recipe = recipes.fill(recipe, usual)
    for one in recipes.stages(recipe):
        check_sizes(one)
    return recipe


def check_sizes(recipe: Recipe) -> None:
    """Raise an error if crops or batches do not fit the network, before the first step."""
    step = crop_step(recipe.model.name, recipe.segmentation.output_stride)
    crop = recipe.segmentation.crop
    if any(side % step for side in crop):
        fitting = [max(step, side // step * step) for side in crop]
        raise UserError(
            f"{recipe.model.name} needs crops whose sides are multiples of {step}, got {list(crop)}", _crop(fitting)
        )
    word, settings = recipe.model.name.partition("-")[0], recipe.segmentation
    if min(crop) < LEAST.get(word, 0):  # at test time, images are padded
        fitting = [max(LEAST[word], side) for side in crop]
        raise UserError(f"{word} needs crops of at least {LEAST[word]} pixels a side, got {list(crop)}", _crop(fitting))
    if settings.output_stride != 8 and word not in DEEPLAB:
        raise UserError(
            f"segmentation.output_stride = {settings.output_stride} has no effect on {word}",
            "leave it out, or use deeplabv3plus",
        )
    if settings.channels and word in NO_WIDTH:
        raise UserError(
            f"the layers of {word} differ in width, so segmentation.channels = {settings.channels} does not apply",
            "leave out segmentation.channels, or use deeplabv3plus or upernet",
        )
    if word == "fpn" and settings.channels % 32:
        raise UserError(
            f"fpn normalizes 32 groups of channels, got segmentation.channels = {settings.channels}",
            "choose a multiple of 32: --set segmentation.channels=128",
        )
    parts = distributed.world_size() * recipe.train.accumulate
    size = recipe.train.batch_size
    if size < 2 * parts or size % parts:
        raise UserError(
            f"batch norm needs two images at a time, and a batch of {size} cannot be split into {parts} such parts",
            f"--batch-size {max(2, round(size / parts)) * parts}",
        )


def _crop(sides: list[int]) -> str:
    return f"--set segmentation.crop=[{','.join(map(str, sides))}]"
