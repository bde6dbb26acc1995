"""Classification: how its data become a task for `fit`, and what is written about the model when it is done."""

import json
import platform
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from gpaco import __version__, methods
from gpaco.data.batches import Batch, shown_counts, steps_per_epoch
from gpaco.data.samples import Samples, Splits
from gpaco.errors import Diverged, UserError
from gpaco.metrics.classification import summarize
from gpaco.models import backbones
from gpaco.models.classifier import Classifier, freeze
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.devices import choose_device
from gpaco.system.files import write_atomic
from gpaco.system.locks import lock
from gpaco.system.progress import Progress, Say, Show, told
from gpaco.tasks.classification.check import record
from gpaco.tasks.classification.evaluation import logits_of
from gpaco.tasks.classification.priors import in_words, write_tuned
from gpaco.tasks.classification.sources import Source, caches, refuse_changed_pixels, source_of
from gpaco.tasks.classification.splits import LOOKED_AT, refuse_tuning, reported, resolve, splits_of
from gpaco.tasks.classification.tuning import tune
from gpaco.training import checkpoint
from gpaco.training.loop import Task
from gpaco.training.run import (
    Predictor,
    Run,
    as_run,
    build_model,
    compare_part,
    has_begun,
    load_classifier,
    newest,
    with_prior,
)


def prepare(recipe: Recipe, given: set[str], folder: Path, device: torch.device, say: Say) -> tuple[Recipe, Splits]:
    """The complete recipe and its images, for a run in `folder`."""
    if recipes.stages(recipe)[-1].method.tune_prior:
        refuse_tuning(recipe)
    begun = has_begun(folder)
    splits = splits_of(recipe, say=say, thorough=not begun, run=folder if begun else None)
    resolved = resolve(recipe, given, splits, device, say)
    for stage in recipes.stages(resolved):
        refuse_changed_pixels(stage)
    say(plan_in_words(recipes.stages(resolved)[-1], splits))
    return resolved, splits


def plan_in_words(recipe: Recipe, splits: Splits) -> str:
    """What will be reported, and what chooses the epoch."""
    part, samples = reported(recipe, splits)
    chosen = f"the best on {len(splits.val)} val images" if splits.val and selects(recipe, splits) else "the last"
    return f"figures: of {f'{len(samples)} {part} images' if samples else 'nothing'}; epoch: {chosen}"


def begin(
    recipe: Recipe,
    splits: Splits,
    home: Path,
    before: tuple[dict[str, torch.Tensor], str] | None,
    device: torch.device,
    say: Say,
    show: Show,
) -> tuple[Task, Source]:
    """What `fit` needs for one stage in its folder, and where its images come from.

    `before` has the weights of the stage before and where they came from in the beginning.
    """
    weights, origin = before or (None, None)
    if checkpoint.find(home / "checkpoints"):
        origin = checkpoint.load(home / "checkpoints", ()).state["about"]["weights"]
    model, about = starting_model(recipe, splits, home, weights, origin)
    if recipe.train.part == "head" and weights is None and not recipe.model.weights:
        say("no --weights: a head on the features of a network that has learned nothing")
    source = source_of(recipe, splits, model, about, home, device, say, show)
    return classification_task(recipe, splits, model, about, source), source


def starting_model(
    recipe: Recipe,
    splits: Splits,
    home: Path,
    weights: dict[str, torch.Tensor] | None = None,
    origin: str | None = None,
) -> tuple[Classifier, dict[str, Any]]:
    """The network as it is before the first step, and what it has to know about itself.

    Args:
        home: folder of the run; a frozen backbone that it has is taken.
        weights: of the stage before.
        origin: where pretrained weights came from, if they are in the run by now; they are not fetched again.
    """
    torch.manual_seed(recipe.train.seed)
    about = describe(recipe, splits) | {"images": {name: part.list_hash() for name, part in splits.parts()}}
    model = build_model(about, recipe.model.weights if origin is None else "")
    about["weights"] = backbones.origin(model.backbone, recipe.model.weights) if origin is None else origin
    if weights is not None:  # of the stage before; its projector may have had its day
        mine = model.state_dict()
        model.load_state_dict(mine | {name: value for name, value in weights.items() if name in mine})
    elif recipe.model.head_std:
        nn.init.trunc_normal_(model.centers.weight, std=recipe.model.head_std)
        nn.init.zeros_(model.centers.bias)
    if origin is not None and (home / "backbone.safetensors").is_file():
        model.backbone.load_state_dict(load_file(home / "backbone.safetensors"))
    freeze(model, recipe.train.part, lora_rank=recipe.train.lora_rank)
    return model, about


def classification_task(
    recipe: Recipe, splits: Splits, model: Classifier, about: dict[str, Any], source: Source
) -> Task:
    """Model, method and batches as `fit` wants them."""
    samples, settings, val = splits.train, recipe.train, splits.val
    counts = shown_counts(samples.counts, settings.sampler)
    about["shown"] = (counts / counts.sum()).tolist()
    method = methods.build(recipe, model, len(samples.classes), torch.from_numpy(counts))

    def epoch_batches(epoch: int, start: int) -> Iterator[Batch]:
        method.begin_epoch(epoch, settings.epochs)
        return source.batches(epoch, start)

    def start_balanced(batch: Batch) -> float:
        return method.start(model, batch.views, batch.labels)

    def loss(wrapped: nn.Module, batch: Batch) -> torch.Tensor:
        result: torch.Tensor = method(wrapped, batch.views, batch.labels)
        return result

    return Task(
        model=model,
        extra=method,
        steps=steps_per_epoch(len(samples), settings.batch_size),
        batches=epoch_batches,
        loss=loss,
        start=start_balanced,
        after_step=lambda: method.after_step(model),
        evaluate=(lambda network: validate(network, about, val, source)) if val and selects(recipe, splits) else None,
        about=about,
    )


def selects(recipe: Recipe, splits: Splits) -> bool:
    """Whether validation data choose the epoch.

    Not if the recipe wants the last one, nor if it reports on them, nor if the head does not train: its figures then
    mean nothing.
    """
    judged = recipe.train.select == "best" and reported(recipe, splits)[0] != "val"
    return splits.val is not None and judged and recipe.method.name not in methods.WITHOUT_CLASSIFIER


def describe(recipe: Recipe, splits: Splits) -> dict[str, Any]:
    """What a model has to know about itself to be used again, ready for JSON."""
    backbone = backbones.build(recipe.model.name, size=recipe.model.size or None)
    plain = recipe.method.name in methods.WITHOUT_PROJECTOR
    return {
        "gpaco": __version__,
        "classes": list(splits.classes),
        "counts": splits.train.counts.tolist(),
        "model": recipe.model.name,
        "drop_path": recipe.model.drop_path,
        "pool": recipe.model.pool,
        "dim": recipe.model.dim,
        "projector": "none" if plain else recipe.model.projector,
        "hidden": recipe.model.hidden,
        "ghost_batch": recipe.model.ghost_batch,
        "size": recipe.model.size or backbone.size,
        "whole": splits.train.images is not None and not recipe.model.resize,  # small images: resized, not cropped
        "resize": recipe.model.resize or round((recipe.model.size or backbone.size) / 0.875),
        "interpolation": recipe.model.interpolation,
        "mean": list(recipe.model.mean or backbone.mean),
        "std": list(recipe.model.std or backbone.std),
        "classifies": recipe.method.name not in methods.WITHOUT_CLASSIFIER,
        "assumes": methods.assumed_prior(recipe),
        "prior": recipe.method.prior,
        "alpha": recipe.method.alpha,
        "label_smoothing": recipe.method.label_smoothing,
        "sampler": recipe.train.sampler,
        "many": recipe.data.many,
        "few": recipe.data.few,
    }


def validate(network: nn.Module, about: dict[str, Any], samples: Samples, source: Source) -> dict[str, Any]:
    """Figures on validation data; macro recall chooses the best epoch."""
    if not isinstance(network, Classifier):
        raise TypeError("validation needs a classifier")
    training = network.training
    logits = source.logits(network.eval(), samples)
    network.train(training)
    if not np.isfinite(logits).all():
        raise Diverged(
            "the model gives numbers that are not finite on validation data; the last checkpoint is kept",
            "lower the learning rate: --lr",
        )
    result = summarize(logits, samples.labels, about["counts"], about["classes"], many=about["many"], few=about["few"])
    kept = ("top1", "many", "medium", "few", "macro")
    return {f"val_{key}": result[key] for key in kept} | {"score": result["macro"]}


def finish(
    run: Run,
    recipe: Recipe,
    splits: Splits,
    source: Source | None,
    device: torch.device,
    say: Say,
    *,
    unbiased: bool = False,
    show: Progress | None = None,
) -> None:
    """Tune the prior if asked, evaluate the chosen checkpoint, write its analysis, figures, predictions and page.

    A prior, tuned after the correction if `unbiased`, is written when all is computed that is said about the model with
    it, and metrics.json, by which a run is finished, right after it.
    """
    predictor = load_classifier(run, device=device, tuned=not recipe.method.tune_prior)
    if recipe.method.tune_prior:
        predictor = with_prior(predictor, tune(predictor, splits.val, unbiased=unbiased, show=show))
        say(in_words(predictor.about["tuned"]))
    about = predictor.about
    if recipe.train.report and distributed.rank() == 0:
        write_analysis(run, splits.train, predictor, say)
    part, samples = reported(recipe, splits)
    if samples is None:
        if about["tuned"] and distributed.rank() == 0:
            write_tuned(run.folder, about["tuned"])
        say("there is no data to evaluate on: only the model was written")
        return
    if source is None or not caches(recipe):
        logits = logits_of(predictor, samples, show=told(say, "evaluating"))
    else:
        logits = (
            predictor.correction(torch.from_numpy(source.logits(predictor.model, samples)).to(device)).cpu().numpy()
        )
    if distributed.rank():
        return
    result = summarize(logits, samples.labels, about["counts"], about["classes"], many=about["many"], few=about["few"])
    state = newest(run).state
    result |= {
        "evaluated_on": part,
        "selected_on": "val" if selects(recipe, splits) else "last epoch",
        "seed": recipe.train.seed,
        "method": recipe.method.name,
        "assumes": about["assumes"],
        "shift": state["progress"]["shift"],
        "counts": about["counts"],
        "shown": about.get("shown"),
        "environment": state["environment"] | {"gpaco": __version__, "python": platform.python_version()},
    }
    predictions = BytesIO()
    np.savez_compressed(predictions, logits=logits, labels=samples.labels, names=np.array(samples.names))
    data = json.dumps(record(splits, limit=LOOKED_AT), indent=1)
    write_atomic(run.folder / "predictions.npz", predictions.getvalue())
    write_atomic(run.folder / "data.json", data)
    if about["tuned"]:
        result["tuned"] = about["tuned"]
        write_tuned(run.folder, about["tuned"])
    write_atomic(run.folder / "metrics.json", json.dumps(result, indent=1))
    if recipe.train.report:
        from gpaco.api.report import report

        report(run, run.folder / "report.html", splits=splits)


def write_analysis(run: Run, samples: Samples, predictor: Predictor, say: Say) -> None:
    """Measure while the training images are at hand: the page can show it when they are gone."""
    from gpaco.analysis import analyze

    say("measuring gradients and probabilities on training images")
    try:
        result = analyze(run, samples, predictor)
    except UserError as error:  # an image that is gone since; the model is none the worse
        say(f"no analysis.json: {error.cause}")
        return
    write_atomic(run.folder / "analysis.json", json.dumps(result, allow_nan=False))


def tune_prior(
    run: Run | Path | str,
    *,
    unbiased: bool = False,
    device: str | None = None,
    say: Say = lambda line: None,
    show: Progress | None = None,
) -> None:
    """Choose tau for a finished run on its validation data, keep it with the run, and write its figures anew.

    With `unbiased`, the logits are corrected for the bias of the loss first.
    """
    run = as_run(run)
    run.check_finished()
    where = choose_device(device)
    last = recipes.stages(run.recipe)[-1]
    refuse_tuning(last)
    with lock(run.folder) if distributed.rank() == 0 else nullcontext():
        splits = splits_of(run.recipe, run=run.folder)
        compare_part(run, splits, "val", say)
        compare_part(run, splits, reported(last, splits)[0])  # `evaluate` says it
        tuning = replace(last, method=replace(last.method, tune_prior=True))
        finish(run, tuning, splits, None, where, lambda line: None, unbiased=unbiased, show=show)
        distributed.barrier()  # nobody loads the model before it is written


def some_samples(splits: Splits, batch_size: int) -> Splits:
    """A batch of training images and a few of the other parts, to try things out."""

    def some(samples: Samples | None, n: int) -> Samples | None:
        return (
            None
            if samples is None
            else samples.subset(np.linspace(0, len(samples) - 1, min(n, len(samples))).astype(int))
        )

    train = splits.train.subset(np.random.default_rng(0).permutation(len(splits.train))[:batch_size])
    return replace(splits, train=train, val=some(splits.val, 64), test=some(splits.test, 64))
