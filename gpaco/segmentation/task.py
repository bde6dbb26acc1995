"""What `fit` needs to train a segmenter, and what is written when it is done."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpaco import __version__, distributed
from gpaco import recipe as recipes
from gpaco.data.random import permutation
from gpaco.errors import UserError, nearest
from gpaco.files import write_atomic
from gpaco.run import Run, load, newest
from gpaco.segmentation.evaluating import ScenePredictor, build_segmenter, evaluate_scenes
from gpaco.segmentation.loading import Crops, SceneBatch, batches, steps_per_epoch
from gpaco.segmentation.losses import METHODS, SceneLoss
from gpaco.segmentation.network import Segmenter
from gpaco.segmentation.reading import read_scenes
from gpaco.segmentation.scenes import Scenes, SceneSplits, pixel_counts
from gpaco.settings import Recipe
from gpaco.training import Task

Say = Callable[[str], None]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def prepare(recipe: Recipe, given: set[str], device: torch.device, say: Say) -> tuple[Recipe, SceneSplits]:
    """The data, and the recipe with every open setting filled in; each guess is said with what overrides it."""
    if recipe.method.name not in METHODS:
        raise UserError(
            f"segmentation has no method {recipe.method.name!r}{nearest(recipe.method.name, METHODS)}",
            f"methods are {', '.join(METHODS)}: --method NAME",
        )
    splits = read_scenes(recipe.data.path)
    if splits.val is None and splits.test is None:
        splits = _hold_back(splits, "test", 0.2, recipe.data.seed)
    if splits.val is None and recipe.data.validation:
        splits = _hold_back(splits, "val", recipe.data.validation, recipe.data.seed)
    for note in (f"data: {splits.reader}", *splits.notes):
        say(note)
    if not len(splits.train):
        raise UserError("there are no training pictures", "check the path: is it the right folder?")
    height, width = splits.train.load_image(0).shape[:2]
    gpu = device.type != "cpu"
    shorter = min(height, width)
    base = [min(shorter, 512 if gpu else 360), min(max(height, width), 2048)]
    side = max(32, base[0] // 8 * 8)
    guesses: dict[str, Any] = {
        "model.name": "deeplabv3plus-resnet50" if gpu else "deeplabv3plus-resnet18",
        "segmentation.crop": [side, side],
        "segmentation.base_size": base,
        "train.batch_size": 16 if gpu else 4,
        "train.epochs": 80 if gpu else 20,
        "optimiser.lr": 0.01,
        "optimiser.weight_decay": 5e-4,
        "schedule.name": "poly",
        "schedule.power": 0.9,
        "schedule.per": "step",
        "schedule.warmup": 0,
        "method.alpha": 0.01,
        "method.temperature": 0.07,
        "train.workers": 2,
    }
    open_ones = {"model.name": recipe.model.name == "auto", "train.workers": recipe.train.workers < 0}
    open_ones |= {f"segmentation.{k}": not getattr(recipe.segmentation, k) for k in ("crop", "base_size")}
    changes = {key: value for key, value in guesses.items() if key not in given or open_ones.get(key, False)}
    for key in ("model.name", "segmentation.crop", "segmentation.base_size", "train.batch_size", "train.epochs"):
        if key in changes:
            say(f"{key} = {changes[key]}  (--set {key}= overrides)")
    recipe = recipes.override(recipe, [f"{key}={value}" for key, value in changes.items()])
    return recipe, splits


def _hold_back(splits: SceneSplits, name: str, share: float, seed: int) -> SceneSplits:
    """The same with a seeded part of training taken out of it."""
    order = permutation(seed, 0, len(splits.train))
    held = max(1, round(share * len(order)))
    if held >= len(order):
        raise UserError(f"{len(order)} pictures are too few to hold some back", "add pictures, or give the parts")
    train, part = splits.train.subset(np.sort(order[held:])), splits.train.subset(np.sort(order[:held]))
    note = f"{name}: {held} of {len(order)} pictures held back (seed {seed})"
    parts: dict[str, Any] = {name: part}
    return replace(splits, train=train, notes=(*splits.notes, note), **parts)


def segmentation_task(recipe: Recipe, splits: SceneSplits, weights: dict[str, Tensor] | None) -> Task:
    """Network, loss and batches as `fit` wants them."""
    torch.manual_seed(recipe.train.seed)
    settings, scenes = recipe.train, splits.train
    about = describe(recipe, splits)
    model = build_segmenter(about, recipe.model.weights)
    if weights is not None:
        mine = model.state_dict()
        model.load_state_dict(mine | {name: value for name, value in weights.items() if name in mine})
    criterion = SceneLoss(recipe.method, recipe.segmentation, np.asarray(about["counts"]), recipe.model.dim)
    segmentation = recipe.segmentation
    crops = Crops(
        crop=(segmentation.crop[0], segmentation.crop[-1]),
        base_size=(segmentation.base_size[0], segmentation.base_size[-1]),
        scale=(segmentation.scale[0], segmentation.scale[-1]),
        max_share=segmentation.max_share,
        colours=segmentation.colours,
        fill=(round(255 * about["mean"][0]), round(255 * about["mean"][1]), round(255 * about["mean"][2])),
    )

    def epoch_batches(epoch: int, start: int) -> Iterator[SceneBatch]:
        return batches(
            scenes,
            crops,
            batch_size=settings.batch_size,
            seed=settings.seed,
            epoch=epoch,
            mean=tuple(about["mean"]),
            std=tuple(about["std"]),
            start=start,
            rank=distributed.rank(),
            world=distributed.world_size(),
            workers=settings.workers,
        )

    def loss(wrapped: nn.Module, batch: SceneBatch) -> Tensor:
        result: Tensor = criterion(wrapped(batch.images), batch.masks)
        return result

    return Task(
        model=model,
        extra=criterion,
        steps=steps_per_epoch(len(scenes), settings.batch_size),
        batches=epoch_batches,
        loss=loss,
        evaluate=None if splits.val is None else lambda network: validate(network, about, splits.val),
        about=about,
    )


def describe(recipe: Recipe, splits: SceneSplits) -> dict[str, Any]:
    """What a segmenter has to know about itself to be used again, ready for JSON."""
    settings = recipe.segmentation
    return {
        "gpaco": __version__,
        "task": "segmentation",
        "classes": list(splits.classes),
        "palette": [list(colour) for colour in splits.train.palette],
        "counts": pixel_counts(splits.train).tolist(),
        "model": recipe.model.name,
        "dim": recipe.model.dim if recipe.method.name == "gpaco" else 0,
        "aux": settings.aux_weight > 0,
        "channels": settings.channels,
        "drop_path": recipe.model.drop_path,
        "mean": list(recipe.model.mean or MEAN),
        "std": list(recipe.model.std or STD),
        "base_size": list(settings.base_size),
        "window": list(settings.window),
        "stride": list(settings.stride),
        "many": settings.many,
        "few": settings.few,
    }


def validate(network: nn.Module, about: dict[str, Any], scenes: Scenes | None) -> dict[str, Any]:
    """Figures on validation scenes; mIoU chooses the best epoch."""
    if scenes is None or not isinstance(network, Segmenter):
        raise TypeError("validation needs a segmenter and scenes")
    training, device = network.training, next(network.parameters()).device
    result = evaluate_scenes(ScenePredictor(network.eval(), about).to(device).eval(), scenes)
    network.train(training)
    kept = ("miou", "many", "medium", "few", "pixel_accuracy")
    return {f"val_{key}": result[key] for key in kept} | {"score": result["miou"] or 0.0}


def finish(run: Run, recipe: Recipe, splits: SceneSplits, device: torch.device, say: Say) -> None:
    """Evaluate the chosen checkpoint and write metrics.json."""
    predictor = load(run, device=device)
    part = "val" if recipe.data.evaluate_on == "val" or splits.test is None else "test"
    scenes = splits.val if part == "val" else splits.test
    if scenes is None or not isinstance(predictor, ScenePredictor):
        say("there is no data to evaluate on: only the model was written")
        return
    result = evaluate_scenes(predictor, scenes)
    if distributed.rank():
        return
    state = newest(run).state
    result |= {
        "task": "segmentation",
        "evaluated_on": part,
        "selected_on": "val" if splits.val is not None else "last epoch",
        "seed": recipe.train.seed,
        "method": recipe.method.name,
        "counts": predictor.about["counts"],
        "environment": state["environment"],
    }
    write_atomic(run.folder / "metrics.json", json.dumps(result, indent=1))
