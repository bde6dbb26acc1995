"""train(): from data and a recipe to a run folder with a model and its figures."""

import json
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gpaco import __version__, backbones, checkpoint, distributed, methods
from gpaco import recipe as recipes
from gpaco.data.checking import refuse_leaks
from gpaco.data.inspecting import find_bad, without
from gpaco.data.loading import Batch, batches, class_shares, mix, steps_per_epoch
from gpaco.data.longtail import long_tailed
from gpaco.data.reading import read
from gpaco.data.samples import Samples, Splits, in_memory
from gpaco.data.splitting import with_test, with_validation
from gpaco.data.suggesting import suggest
from gpaco.data.views import View
from gpaco.errors import Diverged, UserError, nearest
from gpaco.evaluation import logits_of
from gpaco.metrics import groups, summarise
from gpaco.model import Classifier, freeze
from gpaco.recipe import Recipe, Stage
from gpaco.run import Predictor, Run, build_model, is_run, load, newest
from gpaco.training import Task, fit

Say = Callable[[str], None]
LOOKED_AT = 20_000  # files; hashing and decoding more would keep people waiting for minutes

# Flags of the command line and keyword arguments of train(): the setting each stands for.
FLAGS = {
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
    distributed.start(where)
    if distributed.rank():
        say, show = (lambda line: None), (lambda row: None)
    wanted, given = requested(what, recipe, settings, flags)
    folder = Path(out)
    splits = splits_of(wanted, say=say, thorough=not is_run(folder))
    resolved = resolve(wanted, given, splits, where, say)
    with prepared(folder, resolved, say):
        return run_stages(resolved, splits, folder, where, say, show)


def choose_device(name: str | None) -> torch.device:
    """The named device, or the best there is; with several processes, each its own."""
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
    given = set() if recipe is None else {f"{s}.{k}" for s in recipes.SECTIONS for k in asdict(getattr(base, s))}
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


def expect(splits: Splits, settings: recipes.Data) -> None:
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


@contextmanager
def prepared(folder: Path, recipe: Recipe, say: Say) -> Iterator[None]:
    """The run folder, locked by the first process, with the recipe in it. One that holds anything else is refused."""
    with ExitStack() as stack:
        if distributed.rank() == 0:
            if folder.is_dir() and not is_run(folder) and any(path.name != "run.lock" for path in folder.iterdir()):
                raise UserError(f"{folder} is not empty and holds no run", "choose another --out")
            stack.enter_context(checkpoint.lock(folder))
            if is_run(folder) and any(folder.glob("**/checkpoints/*")):  # a run that failed before is none yet
                refuse_other_run(folder, recipe)
                say(f"going on with the run in {folder}")
            else:
                checkpoint.write_atomic(folder / "recipe.toml", recipes.dumps(recipe))
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
    recipe: Recipe,
    splits: Splits,
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
        home = folder if last else folder / f"stage-{number}-{stage.name}"
        if len(stages) > 1:
            say(f"stage {number} of {len(stages)}: {stage.name}")
            if not last and distributed.rank() == 0:
                home.mkdir(exist_ok=True)
                checkpoint.write_atomic(home / "recipe.toml", recipes.dumps(stage))
        task = classification_task(stage, splits, weights)
        fit(task, stage, home, device, show)
        weights = newest(Run(home)).tensors["model"]
    run = Run(folder)
    (finished,) = distributed.agree(int((folder / "metrics.json").is_file()))
    if not finished:
        finish(run, stages[-1], splits, device, say)
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
    """Evaluate the chosen checkpoint and write metrics.json, predictions.npz and the page."""
    predictor = load(run, device=device)
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

    checkpoint.write_atomic(run.folder / "metrics.json", json.dumps(result, indent=1))
    write_page([run], run.folder / "report.html")


def command_line(data: str, out: Path, given: dict[str, Any]) -> str:
    """The command that repeats a run."""
    words = ["gpaco", "train", data, "--out", str(out)]
    for flag, value in given.items():
        words += [f"--{flag.replace('_', '-')}", str(value)]
    return shlex.join(words)


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
        order = np.random.default_rng(0).permutation(len(splits.train))[:size]
        for epochs in (1, 2):
            short = replace(resolved, train=replace(resolved.train, epochs=epochs))
            short = replace(short, stage=tuple(_with_epochs(stage, epochs) for stage in short.stage))
            task_splits = replace(few, train=_subset_keeping_classes(splits.train, order))
            run_stages(short, task_splits, Path(folder), where, lambda line: None, lambda row: None)
            (Path(folder) / "metrics.json").unlink(missing_ok=True)
            say(f"step {epochs}: trained, evaluated and saved" + ("" if epochs == 1 else " after resuming"))
    say("everything works: leave out --dry-run to train")


def _with_epochs(stage: Stage, epochs: int) -> Stage:
    kept = tuple(change for change in stage.changes if change[:2] != ("train", "epochs"))
    return Stage(stage.name, (*kept, ("train", "epochs", epochs)))


def _subset_keeping_classes(samples: Samples, order: Any) -> Samples:
    """Some samples, with at least one of each class so that every count stays above 0."""
    firsts = np.array([np.flatnonzero(samples.labels == c)[0] for c in np.unique(samples.labels)])
    return samples.subset(np.unique(np.concatenate([firsts, order])))
