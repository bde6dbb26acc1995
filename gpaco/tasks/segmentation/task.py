"""What `fit` needs to train a segmenter, and what is written when it is done."""

import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gpaco import __version__
from gpaco.data.batches import steps_per_epoch
from gpaco.errors import UserError
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.files import write_atomic
from gpaco.system.progress import Say, Show, told
from gpaco.tasks.segmentation.batches import Crops, SceneBatch, batches
from gpaco.tasks.segmentation.defaults import usual_size
from gpaco.tasks.segmentation.evaluation import (
    ScenePredictor,
    build_segmenter,
    evaluate_scenes,
    load_segmenter,
    own_part,
)
from gpaco.tasks.segmentation.losses import SceneLoss
from gpaco.tasks.segmentation.network import Segmenter, normalization
from gpaco.tasks.segmentation.scenes import Scenes, SceneSplits
from gpaco.training import checkpoint
from gpaco.training.loop import Task
from gpaco.training.run import Run, newest


def begin(
    recipe: Recipe,
    splits: SceneSplits,
    home: Path,
    before: tuple[dict[str, Tensor], str] | None,
    device: torch.device,
    say: Say,
    show: Show,
) -> tuple[Task, None]:
    """What `fit` needs for one stage in its folder. Weights to start from are not read again by a run that goes on."""
    begun = bool(checkpoint.find(home / "checkpoints"))
    torch.manual_seed(recipe.train.seed)
    about = describe(recipe, splits)
    model = build_segmenter(about, "" if begun or before else recipe.model.weights)
    if before is not None:
        weights, about["weights"] = before
        mine = model.state_dict()
        if changed := [name for name, value in weights.items() if name in mine and mine[name].shape != value.shape]:
            raise UserError(
                f"stage {recipe.name!r} has {changed[0]} of another shape than the stage before it",
                "keep model.name, model.dim and segmentation.channels the same in all stages",
            )
        model.load_state_dict(mine | {name: value for name, value in weights.items() if name in mine})
    return segmentation_task(recipe, splits, model, about), None


def segmentation_task(recipe: Recipe, splits: SceneSplits, model: Segmenter, about: dict[str, Any]) -> Task:
    """Network, loss and batches as `fit` wants them."""
    settings, scenes = recipe.train, splits.train
    criterion = SceneLoss(recipe.method, recipe.segmentation)
    segmentation = recipe.segmentation
    crops = Crops(
        crop=(segmentation.crop[0], segmentation.crop[1]),
        base_size=(segmentation.base_size[0], segmentation.base_size[1]),
        scale=(segmentation.scale[0], segmentation.scale[1]),
        max_share=segmentation.max_share,
        colors=segmentation.colors,
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
            device=next(model.parameters()).device,
        )

    def loss(wrapped: nn.Module, batch: SceneBatch) -> Tensor:
        result: Tensor = criterion(wrapped(batch.images), batch.masks)
        return result

    return Task(
        model=distributed.share_statistics(model),
        extra=criterion,
        steps=steps_per_epoch(len(scenes), settings.batch_size),
        batches=epoch_batches,
        loss=loss,
        evaluate=(lambda network: validate(network, about, splits.val)) if selects(recipe, splits) else None,
        about=about,
    )


def selects(recipe: Recipe, splits: SceneSplits) -> bool:
    """Whether validation scenes choose the epoch: not if the recipe wants the last one, nor if it reports on them."""
    return splits.val is not None and recipe.train.select == "best" and recipe.data.evaluate_on != "val"


def describe(recipe: Recipe, splits: SceneSplits) -> dict[str, Any]:
    """What a segmenter has to know about itself to be used again, ready for JSON."""
    settings = recipe.segmentation
    mean, std = normalization(recipe.model.name)
    return {
        "gpaco": __version__,
        "task": "segmentation",
        "images": {name: part.list_hash() for name, part in splits.parts()},
        "classes": list(splits.classes),
        "palette": [list(color) for color in splits.train.palette],
        "counts": list(splits.pixels),
        "model": recipe.model.name,
        "weights": recipe.model.weights,
        "dim": recipe.model.dim if recipe.method.name == "gpaco" else 0,
        "aux": settings.aux_weight > 0,
        "channels": settings.channels,
        "output_stride": settings.output_stride,
        "drop_path": recipe.model.drop_path,
        "mean": list(recipe.model.mean or mean),
        "std": list(recipe.model.std or std),
        "picture": list(usual_size(splits.train)),
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


def finish(run: Run, recipe: Recipe, splits: SceneSplits, source: None, device: torch.device, say: Say) -> None:
    """Evaluate the chosen checkpoint; write metrics.json and the page."""
    predictor = load_segmenter(run, device=device)
    part = own_part(recipe, splits)
    scenes = dict(splits.parts()).get(part)
    if scenes is None:
        say("there is no data to evaluate on: only the model was written")
        return
    result = evaluate_scenes(predictor, scenes, show=told(say, "evaluating"))
    if distributed.rank():
        return
    state = newest(run).state
    result |= {
        "task": "segmentation",
        "evaluated_on": part,
        "selected_on": "val" if selects(recipe, splits) else "last epoch",
        "seed": recipe.train.seed,
        "method": recipe.method.name,
        "counts": predictor.about["counts"],
        "environment": state["environment"] | {"gpaco": __version__, "python": platform.python_version()},
    }
    write_atomic(run.folder / "metrics.json", json.dumps(result, indent=1))
    if recipe.train.report:
        from gpaco.pages.segmentation import report_scenes

        report_scenes([run], run.folder / "report.html", say=say)
