"""train(): from data and a recipe to a run folder with a model and its figures."""

import json
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from gpaco import __version__, backbones, checkpoint, distributed, methods
from gpaco import recipe as recipes
from gpaco.data.checking import record
from gpaco.data.inspecting import write_bad
from gpaco.data.loading import Batch, class_shares, steps_per_epoch
from gpaco.data.samples import Samples, Splits
from gpaco.devices import choose_device
from gpaco.errors import Diverged, UserError
from gpaco.evaluation import logits_of
from gpaco.faults import faults_explained
from gpaco.files import write_atomic
from gpaco.locking import lock
from gpaco.lora import merged
from gpaco.metrics import summarise
from gpaco.model import Classifier, freeze
from gpaco.preparing import BAD_IMAGES, LOOKED_AT, Say, requested, resolve, splits_of
from gpaco.priors import in_words
from gpaco.run import Predictor, Run, as_run, build_model, has_begun, is_run, load, newest, stage_folder, weights_of
from gpaco.settings import Recipe, Stage
from gpaco.sources import Source, source_of
from gpaco.training import Task, fit
from gpaco.tuning import tune

# Settings that a run may go on with another value of: no bit of its result depends on them.
WITHOUT_EFFECT = ("train.workers", "train.timeout", "train.checkpoint_every", "train.keep")


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
    wanted, given = requested(what, recipe, settings, flags)
    folder = Path(out)
    with faults_explained():
        distributed.start(where, wanted.train.timeout)
        if distributed.rank():
            say, show = (lambda line: None), (lambda row: None)
        begun = has_begun(folder)
        splits = splits_of(wanted, say=say, thorough=not begun, run=folder if begun else None)
        resolved = resolve(wanted, given, splits, where, say)
        with prepared(folder, resolved, splits, say):
            return run_stages(resolved, splits, folder, where, say, show)


@contextmanager
def prepared(folder: Path, recipe: Recipe, splits: Splits, say: Say) -> Iterator[None]:
    """The run folder, locked by the first process, with the recipe in it. One that holds anything else is refused."""
    refuse_small_batches(recipe)
    with ExitStack() as stack:
        if distributed.rank() == 0:
            if folder.is_dir() and not is_run(folder) and any(path.name != "run.lock" for path in folder.iterdir()):
                raise UserError(f"{folder} is not empty and holds no run", "choose another --out")
            stack.enter_context(lock(folder))
            if has_begun(folder):
                refuse_other_run(folder, recipe)
                say(f"going on with the run in {folder}")
            else:
                write_atomic(folder / "recipe.toml", recipes.dumps(recipe))
                if recipe.data.on_bad_image == "skip":
                    write_bad(folder / BAD_IMAGES, splits.bad)
        distributed.barrier()
        yield


def refuse_small_batches(recipe: Recipe) -> None:
    """Every process needs an image for each part that a batch is worked on in, or it would leave the others waiting."""
    world = distributed.world_size()
    for stage in recipes.stages(recipe):
        needed = world * stage.train.accumulate
        if stage.train.batch_size < needed:
            raise UserError(
                f"a batch of {stage.train.batch_size} images is too small for {world} processes that work on it in "
                f"{stage.train.accumulate} parts",
                f"--batch-size {needed} or more",
            )


def refuse_other_run(folder: Path, recipe: Recipe) -> None:
    one, other = recipes.stages(recipes.load(folder)), recipes.stages(recipe)
    if [stage.name for stage in one if len(one) > 1] != [stage.name for stage in other if len(other) > 1]:
        raise UserError(f"{folder} holds a run with other stages", "choose another --out, or give the same settings")
    differs = {key: values for pair in zip(one, other, strict=True) for key, values in recipes.diff(*pair).items()}
    differs = {key: values for key, values in differs.items() if key not in WITHOUT_EFFECT}
    if not differs:
        return
    key, (old, new) = next(iter(differs.items()))
    more = f", and {len(differs) - 1} more settings" if len(differs) > 1 else ""
    raise UserError(
        f"{folder} holds another run: {key} was {old!r}, now {new!r}{more}",
        "choose another --out, or give the same settings to go on",
    )


def run_stages(
    recipe: Recipe,
    splits: Splits,
    folder: Path,
    device: torch.device,
    say: Say,
    show: Callable[[dict[str, Any]], None],
) -> Run:
    """Train the stages one after another, the last one in the folder itself, then evaluate."""
    run, stages = Run(folder), recipes.stages(recipe)
    weights, origin = None, None
    (finished,) = distributed.agree(int((folder / "metrics.json").is_file()))
    if finished:
        return run
    for number, stage in enumerate(stages, 1):
        last = number == len(stages)
        home = folder if last else stage_folder(folder, number, stage.name)
        if len(stages) > 1:
            say(f"stage {number} of {len(stages)}: {stage.name}")
            if not last and distributed.rank() == 0:
                home.mkdir(exist_ok=True)
                write_atomic(home / "recipe.toml", recipes.dumps(stage))
        if checkpoint.find(home / "checkpoints"):
            origin = checkpoint.load(home / "checkpoints", ()).state["about"]["weights"]
        model, about = starting_model(stage, splits, home, weights, origin)
        if stage.train.part == "head" and weights is None and not stage.model.weights:
            say("no --weights: a head on the features of a network that has learnt nothing")
        source = source_of(stage, splits, model, about, home, device, say, show)
        fit(classification_task(stage, splits, model, about, source), stage, home, device, show)
        weights, origin = merged(weights_of(Run(home), newest(Run(home)))), about["weights"]
    finish(run, stages[-1], splits, source, device, say)
    distributed.barrier()  # nobody looks before it is written
    return run


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
    about = describe(recipe, splits)
    model = build_model(about, recipe.model.weights if origin is None else "")
    about["weights"] = backbones.origin(model.backbone, recipe.model.weights) if origin is None else origin
    if weights is not None:  # of the stage before; its projector may have had its day
        mine = model.state_dict()
        model.load_state_dict(mine | {name: value for name, value in weights.items() if name in mine})
    elif recipe.model.head_std:
        nn.init.trunc_normal_(model.centres.weight, std=recipe.model.head_std)
        nn.init.zeros_(model.centres.bias)
    if origin is not None and (home / "backbone.safetensors").is_file():
        model.backbone.load_state_dict(load_file(home / "backbone.safetensors"))
    freeze(model, recipe.train.part, lora_rank=recipe.train.lora_rank)
    return model, about


def classification_task(
    recipe: Recipe, splits: Splits, model: Classifier, about: dict[str, Any], source: Source
) -> Task:
    """Model, method and batches as `fit` wants them."""
    samples, settings, val = splits.train, recipe.train, splits.val

    def shown(epoch: int) -> np.ndarray:
        """Images of each class in an epoch."""
        shares = class_shares(samples.counts, settings.sampler, epoch / max(settings.epochs - 1, 1))
        return np.maximum(shares * len(samples), 1e-9 if settings.sampler != "shuffle" else 1)

    method = methods.build(recipe, model, len(samples.classes), torch.from_numpy(shown(0)))

    def epoch_batches(epoch: int, start: int) -> Iterator[Batch]:
        counts = shown(epoch)
        method.shows(torch.from_numpy(counts))
        about["shown"] = (counts / counts.sum()).tolist()
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
    judged = recipe.train.select == "best" and recipe.data.evaluate_on != "val"
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
        "projector": "none" if plain and not recipe.stage else recipe.model.projector,
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
        "references": references(recipe),
        "sampler": recipe.train.sampler,
        "many": recipe.data.many,
        "few": recipe.data.few,
    }


def references(recipe: Recipe) -> dict[str, Any]:
    """What an anchor of a parametric loss is contrasted with: how many images of a batch, how often, and the memory."""
    method, world = recipe.method, distributed.world_size()
    images = recipe.train.batch_size // (world * recipe.train.accumulate)
    return {
        "images": images * (world if method.contrast == "global" else 1),
        "appearances": 2 if method.name == "paco" or recipe.views.second else 1,  # of each: views, or query and key
        "memory": method.memory,
        "contrast": method.contrast,
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
    result = summarise(logits, samples.labels, about["counts"], about["classes"], many=about["many"], few=about["few"])
    kept = ("top1", "many", "medium", "few", "macro")
    return {f"val_{key}": result[key] for key in kept} | {"score": result["macro"]}


def finish(run: Run, recipe: Recipe, splits: Splits, source: Source | None, device: torch.device, say: Say) -> None:
    """Tune the prior if asked, evaluate the chosen checkpoint, write its analysis, figures, predictions and page."""
    if recipe.method.tune_prior:
        say(in_words(tune(run, splits.val, device=device)))
    predictor = load(run, device=device)
    if distributed.rank() == 0:
        write_analysis(run, splits.train, predictor, say)
    part = "val" if recipe.data.evaluate_on == "val" or splits.test is None else "test"
    samples = splits.val if part == "val" else splits.test
    if samples is None:
        say("there is no data to evaluate on: only the model was written")
        return
    if source is None:
        logits = logits_of(predictor, samples)
    else:
        logits = (
            predictor.correction(torch.from_numpy(source.logits(predictor.model, samples)).to(device)).cpu().numpy()
        )
    if distributed.rank():
        return
    about = predictor.about
    result = summarise(logits, samples.labels, about["counts"], about["classes"], many=about["many"], few=about["few"])
    state = newest(run).state
    result |= {
        "evaluated_on": part,
        "selected_on": "val" if selects(recipe, splits) else "last epoch",
        "seed": recipe.train.seed,
        "method": recipe.method.name,
        "assumes": about["assumes"],
        "shift": state["progress"]["shift"],
        "counts": about["counts"],
        "environment": state["environment"] | {"gpaco": __version__, "python": platform.python_version()},
    }
    if about["tuned"]:
        result["tuned"] = about["tuned"]
    np.savez_compressed(
        run.folder / "predictions.npz", logits=logits, labels=samples.labels, names=np.array(samples.names)
    )
    from gpaco.pages.page import report

    write_atomic(run.folder / "data.json", json.dumps(record(splits, limit=LOOKED_AT), indent=1))
    write_atomic(run.folder / "metrics.json", json.dumps(result, indent=1))
    report(run, run.folder / "report.html", splits=splits)


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


def tune_prior(
    run: Run | Path | str,
    *,
    unbiased: bool = False,
    device: str | None = None,
    say: Say = lambda line: None,
    show: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Choose tau for a finished run on its validation data, keep it with the run, and write its figures anew.

    With `unbiased`, the logits are corrected for the bias of the loss first.
    """
    run = as_run(run)
    run.metrics  # noqa: B018 - says what to do where the run has not come to its end
    where = choose_device(device)
    last = recipes.stages(run.recipe)[-1]
    with lock(run.folder):
        splits = splits_of(run.recipe)
        tuned = tune(run, splits.val, unbiased=unbiased, device=where, show=show)
        finish(run, replace(last, method=replace(last.method, tune_prior=False)), splits, None, where, say)
    return tuned


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
    splits = splits_of(wanted, say=say, thorough=True)
    resolved = resolve(wanted, given, splits, where, say)
    size = resolved.train.batch_size

    def some(samples: Samples | None, n: int) -> Samples | None:
        return (
            None
            if samples is None
            else samples.subset(np.linspace(0, len(samples) - 1, min(n, len(samples))).astype(int))
        )

    few = replace(splits, val=some(splits.val, 64), test=some(splits.test, 64))
    with tempfile.TemporaryDirectory() as folder:
        few = replace(few, train=splits.train.subset(np.random.default_rng(0).permutation(len(splits.train))[:size]))
        for epochs in (1, 2):
            short = replace(resolved, train=replace(resolved.train, epochs=epochs, features=""))
            short = replace(short, stage=tuple(_with_epochs(stage, epochs) for stage in short.stage))
            write_atomic(Path(folder) / "recipe.toml", recipes.dumps(short))
            run_stages(short, few, Path(folder), where, lambda line: None, lambda row: None)
            (Path(folder) / "metrics.json").unlink(missing_ok=True)
            say(f"step {epochs}: trained, evaluated and saved" + ("" if epochs == 1 else " after resuming"))
    say("everything works: leave out --dry-run to train")


def _with_epochs(stage: Stage, epochs: int) -> Stage:
    kept = tuple(change for change in stage.changes if change[:2] != ("train", "epochs"))
    return Stage(stage.name, (*kept, ("train", "epochs", epochs)))
