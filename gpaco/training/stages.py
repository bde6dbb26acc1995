"""Trains a task to a finished run: its folder, its stages, and which runs may be resumed."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from gpaco.data.agreement import check_same_everywhere
from gpaco.data.inspection import write_bad
from gpaco.errors import Problem, UserError
from gpaco.models.lora import merged
from gpaco.recipes import recipe as recipes
from gpaco.recipes.request import FLAGS
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.files import write_atomic
from gpaco.system.locks import HOLDER, LOCK, lock
from gpaco.system.progress import Say, Show
from gpaco.system.words import plural
from gpaco.training import checkpoint
from gpaco.training.loop import fit
from gpaco.training.resume import threads_restored
from gpaco.training.run import (
    BAD_IMAGES,
    RECIPE,
    TUNING,
    Run,
    has_begun,
    is_run,
    newest,
    select_checkpoint,
    stage_folder,
    weights_of,
)
from gpaco.training.task import Before, Learner, Task
from gpaco.training.trackers import tracked

# Settings that may change when a run resumes: the result does not depend on them.
WITHOUT_EFFECT = (
    *("train.workers", "train.timeout", "train.report", "train.log", "train.checkpoint_every", "train.keep"),
    "train.features",
)


@threads_restored()
def run_stages(task: Task, folder: Path, device: torch.device, show: Show, say: Say) -> Run:
    """Train the stages one after another, the last one in the folder itself, then evaluate.

    A stage starts from the best epoch of the previous one, or from its last if validation data does not select one.
    The first process writes the results, which may take minutes; the others do not wait.
    """
    run, stages = Run(folder), recipes.stages(task.recipe)
    (finished,) = distributed.agree(int((folder / "metrics.json").is_file()))
    if finished:
        return run
    before: Before | None = None
    learner: Learner | None = None
    for number, stage in enumerate(stages, 1):
        last = number == len(stages)
        home = folder if last else stage_folder(folder, number, stage.name)
        if len(stages) > 1:
            say(f"stage {number} of {len(stages)}: {stage.name}")
            if not last and distributed.rank() == 0:
                home.mkdir(exist_ok=True)
                write_atomic(home / RECIPE, recipes.dumps(stage))
        learner = task.begin(stage, home, before)
        with tracked(show, learner.recipe, home) as show_and_send:
            fit(learner, home, device, show_and_send)
        if not last:
            weights = merged(weights_of(Run(home), select_checkpoint(Run(home))))
            before = Before(weights, learner.card.weights)
    task.finish(run, learner)
    return run


@contextmanager
def run_folder(folder: Path, task: Task, say: Say) -> Iterator[None]:
    """Lock the run folder, in the first process, and write the recipe to it."""
    recipe = task.recipe
    check_same_everywhere(task.splits)  # including what was held out and left out
    check_batches(recipe, len(task.splits.train))
    with ExitStack() as stack:
        if distributed.rank() == 0:
            new = not folder.exists()
            stack.enter_context(lock(folder))
            if new:
                stack.enter_context(_nothing_left(folder))
            if has_begun(folder):
                for checkpoints in folder.glob("**/checkpoints"):
                    checkpoint.restore(checkpoints)
                check_same_run(folder, recipe, task.splits)
                finished = (folder / "metrics.json").is_file()
                say(f"{folder} is already finished" if finished else f"resuming the run in {folder}")
            else:
                text = recipes.dumps(recipe)
                if is_run(folder) and (folder / RECIPE).read_text(encoding="utf-8") != text:
                    (folder / TUNING).unlink(missing_ok=True)  # of a run that did not get to its first checkpoint
                write_atomic(folder / RECIPE, text)
                (folder / BAD_IMAGES).unlink(missing_ok=True)
                if recipe.data.on_bad_image == "skip":
                    write_bad(folder / BAD_IMAGES, task.splits.bad)
        distributed.barrier()
        yield


@contextmanager
def _nothing_left(folder: Path) -> Iterator[None]:
    """Remove the new folder if wrong input, such as weights of another model, ends the run before it starts."""
    try:
        yield
    except UserError:
        own = (RECIPE, LOCK, HOLDER, BAD_IMAGES)
        if all(path.name in own for path in folder.iterdir()):
            shutil.rmtree(folder)
        raise


def check_batches(recipe: Recipe, images: int) -> None:
    """Raise an error if processes cannot share a batch evenly.

    Each process needs an image for every step of gradient accumulation, or the others would wait for it forever. All
    need the same number: gradients are averaged over processes, so images in a smaller share would weigh more.
    """
    world = distributed.world_size()
    for stage in recipes.stages(recipe):
        size, needed = stage.train.batch_size, world * stage.train.accumulate
        if size < needed:
            raise UserError(
                f"a batch of {size} images is too small for {world} processes and "
                f"{stage.train.accumulate} steps of accumulation",
                f"--batch-size {needed} or more",
            )
        if size % world:
            less = size - size % world
            fitting = [str(number) for number in (less, less + world) if number <= images]
            raise UserError(
                f"a batch of {size} images cannot be divided evenly among {world} processes",
                f"--batch-size {' or '.join(fitting)}",
            )


def check_same_run(folder: Path, recipe: Recipe, splits: Any = None) -> None:
    """Raise an error if the folder holds a run with another recipe, or if its data has changed."""
    one, other = recipes.stages(recipes.load(folder / RECIPE)), recipes.stages(recipe)
    if [stage.name for stage in one if len(one) > 1] != [stage.name for stage in other if len(other) > 1]:
        raise UserError(
            f"{folder} holds a run with different stages", "choose another --out, or give the same settings"
        )
    differs = {key: values for pair in zip(one, other, strict=True) for key, values in recipes.diff(*pair).items()}
    differs = {
        key: values
        for key, values in differs.items()
        if key not in WITHOUT_EFFECT and not key.startswith("source.")  # notes about a recipe
    }
    if not differs and not (folder / "metrics.json").is_file():  # `resume` says what has changed
        return
    if not any(key.startswith("data.") for key in differs) and splits and _has_changed(splits, folder):
        raise UserError(
            f"the data of the run in {folder} has changed since it started",
            "restore the data, or start over with another --out",
        )
    if not differs:
        return
    key = min(
        differs, key=lambda key: key not in FLAGS.values()
    )  # prefer settings with an option over those derived from them
    old, new = differs[key]
    if list(differs) == ["method.tune_prior"] and new:
        raise UserError(f"{folder} holds a run without a tuned prior", f"tune it: gpaco evaluate {folder} --tune-prior")
    if set(differs) == {"data.path"}:
        raise UserError(f"the run in {folder} has its data at {old}", "move the data back, or choose another --out")
    more = f", and {plural(len(differs) - 1, 'more setting')}" if len(differs) > 1 else ""
    raise UserError(
        f"{folder} holds another run: {key} was {old!r}, now {new!r}{more}",
        "choose another --out, or give the same settings to resume",
    )


def _has_changed(splits: Any, folder: Path) -> bool:
    """Return whether the data has other images than the run in the folder was started with, as far as known."""
    with suppress(Problem):
        known = newest(Run(folder)).state["card"]["images"]
        return bool({name: part.list_hash for name, part in splits.parts()} != known)
    return False
