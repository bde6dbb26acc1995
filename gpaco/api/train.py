"""train(): from data and a recipe to a run folder, whatever the task: locks, stages, resuming, trying out."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gpaco.data.inspection import write_bad
from gpaco.errors import UserError
from gpaco.models import backbones
from gpaco.models.lora import merged
from gpaco.models.weights.files import check_readable
from gpaco.models.weights.hub import is_hub
from gpaco.recipes import recipe as recipes
from gpaco.recipes.request import requested
from gpaco.recipes.settings import Recipe, Stage
from gpaco.system import distributed
from gpaco.system.devices import choose_device
from gpaco.system.faults import explained
from gpaco.system.files import write_atomic
from gpaco.system.locks import HOLDER, LOCK, lock
from gpaco.system.progress import Say, Show, quiet
from gpaco.tasks.classification.splits import BAD_IMAGES
from gpaco.training.loop import Task, fit
from gpaco.training.run import Run, has_begun, is_run, newest, stage_folder, weights_of

# Settings that a run may go on with another value of: no bit of its result depends on them.
WITHOUT_EFFECT = ("train.workers", "train.timeout", "train.report", "train.checkpoint_every", "train.keep")

Before = tuple[dict[str, torch.Tensor], str] | None  # weights of the stage before, and where they came from at first


class Kind(NamedTuple):
    """What one task does in its own way. Its data have `bad`, the images that were left out."""

    refuse_unknown: Callable[[str], None]  # the name of a model that there is not
    prepare: Callable[[Recipe, set[str], Path, torch.device, Say], tuple[Recipe, Any]]  # the recipe complete, and data
    begin: Callable[[Recipe, Any, Path, Before, torch.device, Say, Show], tuple[Task, Any]]  # and its source
    finish: Callable[[Run, Recipe, Any, Any, torch.device, Say], None]
    some: Callable[[Any, int], Any]  # a little of the data, a batch of it to train on


def kind_of(recipe: Recipe) -> Kind:
    """How the recipe's task is done."""
    if recipe.train.task == "segmentation":
        from gpaco.tasks.segmentation import network, task
        from gpaco.tasks.segmentation import splits as preparing

        return Kind(network.refuse_unknown, preparing.prepare, task.begin, task.finish, preparing.some_scenes)
    from gpaco.tasks.classification import task as own

    return Kind(backbones.check_name, own.prepare, own.begin, own.finish, own.some_samples)


def train(
    what: Path | str | Recipe,
    *,
    out: Path | str,
    recipe: Path | str | Recipe | None = None,
    paper: bool = False,
    settings: Sequence[str] = (),
    device: str | None = None,
    say: Say = print,
    show: Show = quiet,
    **flags: Any,
) -> Run:
    """Train a classifier and write everything about it to the folder `out`; the same call again resumes.

    With task="segmentation" it is a segmenter, and `what` a folder of pictures and masks.

    Args:
        what: the data (a folder, table, list, archive, or "digits"), or a complete recipe.
        recipe: name or file of a recipe, for data given first.
        paper: take the values of the paper's text where the released code, and so the recipe, has others.
        settings: changes such as "method.alpha=0.02".
        flags: short names of settings: method, model, epochs, batch_size, lr, seed, long_tail, ... (FLAGS).
        say: is told every decision in a line.
        show: is told of every step and epoch.

    For example `run = train("digits", out="runs/first", long_tail=50, epochs=30)`, then `run.metrics["few"]`.
    """
    where = choose_device(device)
    wanted, given = requested(what, recipe, settings, flags, paper=paper)
    folder = Path(out)
    with explained():
        distributed.start(where, wanted.train.timeout)
        if distributed.rank():
            say = show = quiet
        else:
            refuse_folder(folder, wanted.data.path)
        kind = kind_of(wanted)
        if not has_begun(folder):
            refuse_model(kind, wanted)
        resolved, data = kind.prepare(wanted, given, folder, where, say)
        with prepared(folder, resolved, data, say):
            return run_stages(kind, resolved, data, folder, where, say, show)


def refuse_model(kind: Kind, recipe: Recipe) -> None:
    """Raise where there is no such model, or no such file of weights: now, before all images are looked at."""
    for name in {stage.model.name for stage in recipes.stages(recipe)} - {"auto"}:
        kind.refuse_unknown(name)
    if recipe.model.weights and not is_hub(recipe.model.weights):
        check_readable(Path(recipe.model.weights))


def refuse_folder(folder: Path, data: str) -> None:
    """Raise where results cannot go: to a file, among other files, or into the data, which would take it for images."""
    for place in (folder, *folder.absolute().parents):
        if place.exists() and not place.is_dir():
            raise UserError(f"{place} is a file, not a folder", "choose another --out")
    if folder.is_dir() and not is_run(folder) and any(path.name not in (LOCK, HOLDER) for path in folder.iterdir()):
        raise UserError(f"{folder} is not empty and holds no run", "choose another --out")
    images = Path(data).expanduser().resolve()
    if data not in ("", "digits") and images.is_dir() and folder.resolve().is_relative_to(images):
        raise UserError(f"{folder} is inside the data, {images}, and would spoil it", "choose an --out beside the data")


@contextmanager
def prepared(folder: Path, recipe: Recipe, data: Any, say: Say) -> Iterator[None]:
    """The run folder, locked by the first process, with the recipe in it."""
    refuse_batches(recipe, len(data.train))
    with ExitStack() as stack:
        if distributed.rank() == 0:
            new = not folder.exists()
            stack.enter_context(lock(folder))
            if new:
                stack.enter_context(_nothing_left(folder))
            if has_begun(folder):
                refuse_other_run(folder, recipe)
                say(f"going on with the run in {folder}")
            else:
                write_atomic(folder / "recipe.toml", recipes.dumps(recipe))
                if recipe.data.on_bad_image == "skip":
                    write_bad(folder / BAD_IMAGES, data.bad)
        distributed.barrier()
        yield


@contextmanager
def _nothing_left(folder: Path) -> Iterator[None]:
    """Where wrong input ends a run before it has begun, such as weights of another model, take its new folder away."""
    try:
        yield
    except UserError:
        own = ("recipe.toml", LOCK, HOLDER, BAD_IMAGES)
        if all(path.name in own for path in folder.iterdir()):
            shutil.rmtree(folder)
        raise


def refuse_batches(recipe: Recipe, images: int) -> None:
    """Raise where processes cannot share a batch of so many images in all.

    Each needs one for every part that a batch is worked on in, or it would leave the others waiting; and all need
    equally many, for gradients are averaged over processes, and an image in a smaller share would count for more.
    """
    world = distributed.world_size()
    for stage in recipes.stages(recipe):
        size, needed = min(stage.train.batch_size, images), world * stage.train.accumulate
        if size < needed:
            raise UserError(
                f"a batch of {size} images is too small for {world} processes that work on it in "
                f"{stage.train.accumulate} parts",
                f"--batch-size {needed} or more",
            )
        if size % world:
            less = size - size % world
            fitting = [str(number) for number in (less, less + world) if number <= images]
            raise UserError(
                f"{world} processes cannot have equally many of {size} images, and so images would not count alike",
                f"--batch-size {' or '.join(fitting)}",
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
    if list(differs) == ["method.tune_prior"] and new:
        raise UserError(f"{folder} holds a run without a tuned prior", f"tune it: gpaco evaluate {folder} --tune-prior")
    more = f", and {len(differs) - 1} more settings" if len(differs) > 1 else ""
    raise UserError(
        f"{folder} holds another run: {key} was {old!r}, now {new!r}{more}",
        "choose another --out, or give the same settings to go on",
    )


def run_stages(kind: Kind, recipe: Recipe, data: Any, folder: Path, device: torch.device, say: Say, show: Show) -> Run:
    """Train the stages one after another, the last one in the folder itself, then evaluate."""
    run, stages = Run(folder), recipes.stages(recipe)
    before: Before = None
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
        task, source = kind.begin(stage, data, home, before, device, say, show)
        fit(task, stage, home, device, show)
        before = merged(weights_of(Run(home), newest(Run(home)))), task.about["weights"]
    kind.finish(run, stages[-1], data, source, device, say)
    distributed.barrier()  # nobody looks before it is written
    return run


def dry_run(
    what: Path | str | Recipe,
    *,
    recipe: Path | str | Recipe | None = None,
    paper: bool = False,
    settings: Sequence[str] = (),
    device: str | None = None,
    say: Say = print,
    **flags: Any,
) -> None:
    """Try what training would do, with two steps on a few images: train, evaluate, save, resume. Nothing stays."""
    where = choose_device(device)
    wanted, given = requested(what, recipe, settings, flags, paper=paper)
    kind = kind_of(wanted)
    refuse_model(kind, wanted)
    with tempfile.TemporaryDirectory() as folder:
        resolved, data = kind.prepare(wanted, given, Path(folder), where, say)
        few = kind.some(data, resolved.train.batch_size)
        for epochs in (1, 2):
            short = replace(resolved, train=replace(resolved.train, epochs=epochs, features=""))
            short = replace(short, stage=tuple(_with_epochs(stage, epochs) for stage in short.stage))
            write_atomic(Path(folder) / "recipe.toml", recipes.dumps(short))
            run_stages(kind, short, few, Path(folder), where, quiet, quiet)
            (Path(folder) / "metrics.json").unlink(missing_ok=True)
            say(f"step {epochs}: trained, evaluated and saved" + ("" if epochs == 1 else " after resuming"))
    say("everything works: leave out --dry-run to train")


def _with_epochs(stage: Stage, epochs: int) -> Stage:
    kept = tuple(change for change in stage.changes if change[:2] != ("train", "epochs"))
    return Stage(stage.name, (*kept, ("train", "epochs", epochs)))
