"""train(): from data and a recipe to a run folder with a model and its figures."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from gpaco import __version__, backbones, distributed, methods
from gpaco import recipe as recipes
from gpaco.data.loading import Batch, batches, class_shares, mix, steps_per_epoch
from gpaco.data.samples import Samples, Splits
from gpaco.data.views import View
from gpaco.errors import Diverged, UserError
from gpaco.evaluation import logits_of
from gpaco.files import write_atomic
from gpaco.locking import lock
from gpaco.metrics import summarise
from gpaco.model import Classifier, freeze
from gpaco.preparing import Say, requested, resolve, splits_of
from gpaco.run import Predictor, Run, build_model, is_run, load, newest, stage_folder
from gpaco.settings import Recipe, Stage
from gpaco.training import Task, fit


def train(
    what: Path | str | Recipe,
    *,
    out: Path | str,
    recipe: Path | str | Recipe | None = None,
    settings: Sequence[str] = (),
    device: str | None = None,
    say: Say = print,
    show: Callable[[dict[str, Any]], None] = lambda row: None,
    **flags: Any,
) -> Run:
    """Train a classifier and write everything about it to the folder `out`; the same call again resumes.

    With task="segmentation" it is a segmenter, and `what` a folder of pictures and masks.

    Args:
        what: the data (a folder, table, list, archive, or "digits"), or a complete recipe.
        recipe: name or file of a recipe, for data given first.
        settings: changes such as "method.alpha=0.02".
        flags: short names of settings: method, model, epochs, batch_size, lr, seed, long_tail, ... (FLAGS).
        say: is told every decision in a line.
        show: is told of every step and epoch.

    For example `run = train("digits", out="runs/first", long_tail=50, epochs=30)`, then `run.metrics["few"]`.
    """
    where = choose_device(device)
    distributed.start(where)
    if distributed.rank():
        say, show = (lambda line: None), (lambda row: None)
    wanted, given = requested(what, recipe, settings, flags)
    folder = Path(out)
    kind = kind_of(wanted)
    resolved, data = kind.prepare(wanted, given, folder, where, say)
    with prepared(folder, resolved, say):
        return run_stages(kind, resolved, data, folder, where, say, show)


class Kind(NamedTuple):
    """What one task does in its own way; locks, stages, the loop, resuming and signals are the same for all."""

    prepare: Callable[[Recipe, set[str], Path, torch.device, Say], tuple[Recipe, Any]]  # the recipe complete, and data
    task: Callable[[Recipe, Any, dict[str, torch.Tensor] | None], Task]
    finish: Callable[[Run, Recipe, Any, torch.device, Say], None]
    some: Callable[[Any, int], Any]  # a little of the data, a batch of it to train on


def kind_of(recipe: Recipe) -> Kind:
    """How the recipe's task is done."""
    if recipe.train.task == "segmentation":
        from gpaco.segmentation import preparing, task

        return Kind(preparing.prepare, task.segmentation_task, task.finish, preparing.some_scenes)
    return Kind(prepare, classification_task, finish, some_samples)


def prepare(recipe: Recipe, given: set[str], folder: Path, device: torch.device, say: Say) -> tuple[Recipe, Splits]:
    """The complete recipe and its images."""
    splits = splits_of(recipe, say=say, thorough=not is_run(folder))
    return resolve(recipe, given, splits, device, say), splits


def choose_device(name: str | None) -> torch.device:
    """The named device, or a CUDA one if there is, else the CPU; with several processes, each its own."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"there is no device {name!r} here: {str(error).splitlines()[0]}", "--device cpu") from error
    if name == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    return device


@contextmanager
def prepared(folder: Path, recipe: Recipe, say: Say) -> Iterator[None]:
    """The run folder, locked by the first process, with the recipe in it. One that holds anything else is refused."""
    with ExitStack() as stack:
        if distributed.rank() == 0:
            if folder.is_dir() and not is_run(folder) and any(path.name != "run.lock" for path in folder.iterdir()):
                raise UserError(f"{folder} is not empty and holds no run", "choose another --out")
            stack.enter_context(lock(folder))
            if is_run(folder) and any(folder.glob("**/checkpoints/*")):  # a run that failed before is none yet
                refuse_other_run(folder, recipe)
                say(f"going on with the run in {folder}")
            else:
                write_atomic(folder / "recipe.toml", recipes.dumps(recipe))
        distributed.barrier()
        yield


def refuse_other_run(folder: Path, recipe: Recipe) -> None:
    differs = recipes.diff(recipes.load(folder), recipe)
    if not differs:
        return
    key, (old, new) = next(iter(differs.items()))
    more = f", and {len(differs) - 1} more settings" if len(differs) > 1 else ""
    raise UserError(
        f"{folder} holds another run: {key} was {old!r}, now {new!r}{more}",
        "choose another --out, or give the same settings to go on",
    )


def run_stages(
    kind: Kind,
    recipe: Recipe,
    data: Any,
    folder: Path,
    device: torch.device,
    say: Say,
    show: Callable[[dict[str, Any]], None],
) -> Run:
    """Train the stages one after another, the last one in the folder itself, then evaluate."""
    stages = recipes.stages(recipe)
    weights = None
    for number, stage in enumerate(stages, 1):
        last = number == len(stages)
        home = folder if last else stage_folder(folder, number, stage.name)
        if len(stages) > 1:
            say(f"stage {number} of {len(stages)}: {stage.name}")
            if not last and distributed.rank() == 0:
                home.mkdir(exist_ok=True)
                write_atomic(home / "recipe.toml", recipes.dumps(stage))
        fit(kind.task(stage, data, weights), stage, home, device, show)
        weights = newest(Run(home)).tensors["model"]
    run = Run(folder)
    (finished,) = distributed.agree(int((folder / "metrics.json").is_file()))
    if not finished:
        kind.finish(run, stages[-1], data, device, say)
        distributed.barrier()  # nobody looks before it is written
    return run


def classification_task(recipe: Recipe, splits: Splits, weights: dict[str, torch.Tensor] | None) -> Task:
    """Model, method and batches as `fit` wants them."""
    torch.manual_seed(recipe.train.seed)
    samples, settings = splits.train, recipe.train
    about = describe(recipe, splits)
    model = build_model(about, recipe.model.weights)
    if weights is not None:  # of the stage before; its projector may have had its day
        mine = model.state_dict()
        model.load_state_dict(mine | {name: value for name, value in weights.items() if name in mine})
    elif recipe.model.head_std:
        nn.init.trunc_normal_(model.centres.weight, std=recipe.model.head_std)
    freeze(model, settings.part)
    shown = class_shares(samples.counts, settings.sampler) * len(samples)
    counts = torch.from_numpy(np.maximum(shown, 1e-9 if settings.sampler != "shuffle" else 1))
    method = methods.build(recipe, model, len(samples.classes), counts)
    views = [view_of(recipe, name) for name in (recipe.views.first, recipe.views.second) if name]
    rank, world = distributed.rank(), distributed.world_size()

    def epoch_batches(epoch: int, start: int) -> Any:
        for step, batch in enumerate(
            batches(
                samples,
                views,
                batch_size=settings.batch_size,
                seed=settings.seed,
                epoch=epoch,
                epochs=settings.epochs,
                mean=tuple(about["mean"]),
                std=tuple(about["std"]),
                sampler=settings.sampler,
                start=start,
                rank=rank,
                world=world,
                workers=settings.workers,
            ),
            start,
        ):
            yield mix(
                batch, recipe.method.mixup, recipe.method.cutmix, len(samples.classes), settings.seed, epoch, step
            )

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
        evaluate=None if splits.val is None else lambda network: validate(network, about, splits.val),
        about=about,
    )


def view_of(recipe: Recipe, name: str) -> View:
    views = recipe.views
    scale = (views.crop_scale[0], views.crop_scale[1]) if views.crop_scale else None
    return View(name, recipe.model.size, scale, views.ops, views.magnitude, views.flip)


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
        "dim": recipe.model.dim,
        "projector": "none" if plain and not recipe.stage else recipe.model.projector,
        "ghost_batch": recipe.model.ghost_batch,
        "size": recipe.model.size or backbone.size,
        "whole": splits.train.images is not None and not recipe.model.resize,  # small images: resized, not cropped
        "resize": recipe.model.resize or round((recipe.model.size or backbone.size) / 0.875),
        "mean": list(recipe.model.mean or backbone.mean),
        "std": list(recipe.model.std or backbone.std),
        "assumes": methods.assumed_prior(recipe),
        "prior": recipe.method.prior,
        "alpha": recipe.method.alpha,
        "many": recipe.data.many,
        "few": recipe.data.few,
    }


def validate(network: nn.Module, about: dict[str, Any], samples: Samples | None) -> dict[str, Any]:
    """Figures on validation data; macro recall chooses the best epoch."""
    if samples is None or not isinstance(network, Classifier):
        raise TypeError("validation needs a classifier and data")
    training = network.training
    device = next(network.parameters()).device
    logits = logits_of(Predictor(network.eval(), about).to(device).eval(), samples)
    network.train(training)
    if not np.isfinite(logits).all():
        raise Diverged(
            "the model gives numbers that are not finite on validation data; the last checkpoint is kept",
            "lower the learning rate: --lr",
        )
    result = summarise(logits, samples.labels, about["counts"], about["classes"], many=about["many"], few=about["few"])
    kept = ("top1", "many", "medium", "few", "macro")
    return {f"val_{key}": result[key] for key in kept} | {"score": result["macro"]}


def finish(run: Run, recipe: Recipe, splits: Splits, device: torch.device, say: Say) -> None:
    """Evaluate the chosen checkpoint and write analysis.json, metrics.json, predictions.npz and the page."""
    predictor = load(run, device=device)
    if distributed.rank() == 0:
        write_analysis(run, splits.train, predictor, say)
    part = "val" if recipe.data.evaluate_on == "val" or splits.test is None else "test"
    samples = splits.val if part == "val" else splits.test
    if samples is None:
        say("there is no data to evaluate on: only the model was written")
        return
    logits = logits_of(predictor, samples)
    if distributed.rank():
        return
    about = predictor.about
    result = summarise(logits, samples.labels, about["counts"], about["classes"], many=about["many"], few=about["few"])
    state = newest(run).state
    result |= {
        "evaluated_on": part,
        "selected_on": "val" if splits.val is not None else "last epoch",
        "seed": recipe.train.seed,
        "method": recipe.method.name,
        "assumes": about["assumes"],
        "shift": state["progress"]["shift"],
        "counts": about["counts"],
        "environment": state["environment"],
    }
    np.savez_compressed(
        run.folder / "predictions.npz", logits=logits, labels=samples.labels, names=np.array(samples.names)
    )
    from gpaco.pages.simple import write_page

    write_atomic(run.folder / "metrics.json", json.dumps(result, indent=1))
    write_page([run], run.folder / "report.html")


def write_analysis(run: Run, samples: Samples, predictor: Predictor, say: Say) -> None:
    """Measure while the training images are at hand: the page can show it when they are gone."""
    from gpaco.analysis import analyse

    say("measuring gradients and probabilities on training images")
    try:
        result = analyse(run, samples, predictor)
    except UserError as error:  # an image that is gone since; the model is none the worse
        say(f"no analysis.json: {error.cause}")
        return
    write_atomic(run.folder / "analysis.json", json.dumps(result, allow_nan=False))


def dry_run(
    what: Path | str | Recipe,
    *,
    recipe: Path | str | Recipe | None = None,
    settings: Sequence[str] = (),
    device: str | None = None,
    say: Say = print,
    **flags: Any,
) -> None:
    """Try what training would do, with two steps on a few images: train, evaluate, save, resume. Nothing stays."""
    where = choose_device(device)
    wanted, given = requested(what, recipe, settings, flags)
    kind = kind_of(wanted)
    with tempfile.TemporaryDirectory() as folder:
        resolved, data = kind.prepare(wanted, given, Path(folder), where, say)
        few = kind.some(data, resolved.train.batch_size)
        for epochs in (1, 2):
            short = replace(resolved, train=replace(resolved.train, epochs=epochs))
            short = replace(short, stage=tuple(_with_epochs(stage, epochs) for stage in short.stage))
            run_stages(kind, short, few, Path(folder), where, lambda line: None, lambda row: None)
            (Path(folder) / "metrics.json").unlink(missing_ok=True)
            say(f"step {epochs}: trained, evaluated and saved" + ("" if epochs == 1 else " after resuming"))
    say("everything works: leave out --dry-run to train")


def some_samples(splits: Splits, batch_size: int) -> Splits:
    """A batch of training images and a few of the other parts, to try things out."""

    def some(samples: Samples | None, n: int) -> Samples | None:
        return (
            None
            if samples is None
            else samples.subset(np.linspace(0, len(samples) - 1, min(n, len(samples))).astype(int))
        )

    order = np.random.default_rng(0).permutation(len(splits.train))[:batch_size]
    few = replace(splits, val=some(splits.val, 64), test=some(splits.test, 64))
    return replace(few, train=_subset_keeping_classes(splits.train, order))


def _with_epochs(stage: Stage, epochs: int) -> Stage:
    kept = tuple(change for change in stage.changes if change[:2] != ("train", "epochs"))
    return Stage(stage.name, (*kept, ("train", "epochs", epochs)))


def _subset_keeping_classes(samples: Samples, order: Any) -> Samples:
    """Some samples, with at least one of each class so that every count stays above 0."""
    firsts = np.array([np.flatnonzero(samples.labels == c)[0] for c in np.unique(samples.labels)])
    return samples.subset(np.unique(np.concatenate([firsts, order])))
