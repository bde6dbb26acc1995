"""train(): from data and a recipe to a run folder, for either task."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpaco.api.report import report
from gpaco.api.tasks import TASKS
from gpaco.data.batches import steps_per_epoch
from gpaco.data.published_lists import compared_with_published
from gpaco.errors import UserError
from gpaco.models.backbones import NONE
from gpaco.models.weights.files import check_readable
from gpaco.models.weights.hub import is_hub
from gpaco.models.weights.packaged import PACKAGE
from gpaco.pages.render import PROGRESS_MARK
from gpaco.recipes import recipe as recipes
from gpaco.recipes.paper_rows import processes_of
from gpaco.recipes.request import requested
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.distributed import choose_device
from gpaco.system.faults import explained
from gpaco.system.files import write_atomic
from gpaco.system.memory import peak_memory
from gpaco.system.outputs import has_mark, output_folder
from gpaco.system.progress import Say, Show, quiet
from gpaco.system.words import plural
from gpaco.tasks.duration import rounded
from gpaco.training.run import RECIPE, SHARDS, Run, has_begun, is_run, stage_folder
from gpaco.training.stages import run_folder, run_stages
from gpaco.training.task import Task
from gpaco.training.trackers import wanted_trackers


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
    """Train a classifier and write everything about it to the folder `out`. The same call resumes.

    With task="segmentation" it trains a segmenter, and `what` is a folder of images and masks. Under torchrun, the
    first process writes metrics and page after the others have returned.

    Args:
        what: data (a folder, table, list, archive, or "digits"), or a complete recipe.
        recipe: name or file of a recipe, if `what` is data.
        paper: use the values of the paper where they differ from the released code, which the recipe follows.
        settings: changes such as "method.alpha=0.02".
        flags: short names of settings: method, model, epochs, batch_size, lr, seed, long_tail, ... (FLAGS).
        say: called with a line about every decision.
        show: called after every step and epoch.

    >>> from tempfile import TemporaryDirectory
    >>> quick = {"method": "ce", "long_tail": 50, "epochs": 1, "report": False}
    >>> with TemporaryDirectory() as out:
    ...     run = train("digits", out=out, say=lambda line: None, **quick)
    ...     recall = [row["recall"] for row in run.metrics["per_class"]]
    >>> len(recall), all(0 <= value <= 1 for value in recall)
    (10, True)
    """
    where = choose_device(device)
    wanted, given = requested(what, recipe, settings, flags, paper=paper)
    wanted_trackers(wanted)
    folder = Path(out)
    with explained():
        distributed.start(where, wanted.train.timeout)
        if distributed.rank():
            say = show = quiet
        else:
            output_folder(folder, RECIPE, SHARDS, data=wanted.data.places)
            if is_run(folder) and not has_begun(folder) and not recipes.is_own(folder / RECIPE):
                raise UserError(f"{folder} has a recipe.toml that `gpaco train` did not write", "choose another --out")
        kind = TASKS[wanted.train.task]
        if not has_begun(folder):
            check_model(kind, wanted)
        task = kind.prepare(wanted, given, folder, where, say)
        with run_folder(folder, task, say):
            run = run_stages(task, folder, where, show, say)
            write_page(run, task, say)
    return run


def write_page(run: Run, task: Task, say: Say) -> None:
    """Write the page of a finished run, unless it exists (a page about training progress is replaced) or is off."""
    page = run.folder / "report.html"
    wanted = recipes.stages(task.recipe)[-1].train.report and (run.folder / "metrics.json").is_file()
    if wanted and distributed.rank() == 0 and (not page.exists() or has_mark(page, PROGRESS_MARK)):
        report(run, page, splits=task.splits, say=say)


def check_model(kind: type[Task], recipe: Recipe) -> None:
    """Raise an error if there is no such model or weights file, before all images are read."""
    weights = recipe.model.weights
    for name in {stage.model.name for stage in recipes.stages(recipe)} - {"auto"}:
        kind.check_model(name, weights)
    if weights not in ("auto", NONE, PACKAGE) and not is_hub(weights):
        check_readable(Path(weights))


def dry_run(
    what: Path | str | Recipe,
    *,
    recipe: Path | str | Recipe | None = None,
    paper: bool = False,
    settings: Sequence[str] = (),
    device: str | None = None,
    say: Say = print,
    **flags: Any,
) -> dict[str, Any]:
    """Test training with two steps on a few images: train, evaluate, save, resume. Leaves no files.

    Return what the whole training needs, estimated from the second step: `hours` without evaluation and `memory_gb` per
    process. `processes` is the number that the recipe's command starts, which share a batch; each step here is the
    share of one of them. `lists` says whether the data files are the published ones.
    """
    if distributed.started() > 1:
        raise UserError("--dry-run runs in one process only", "leave out torchrun")
    where = choose_device(device)
    wanted, given = requested(what, recipe, settings, flags, paper=paper)
    wanted_trackers(wanted)
    kind = TASKS[wanted.train.task]
    check_model(kind, wanted)
    lists = compared_with_published(Path(wanted.data.path))
    for line in lists:
        say(line)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = kind.prepare(wanted, given, folder, where, say)
        images, full, processes = len(task.splits.train), task.recipe, processes_of(task.recipe.source.command)
        whole = task.with_recipe(_share(full, processes)).sample()
        short = replace(whole.recipe, train=replace(whole.recipe.train, features="", log="", tune=0.0))
        keys = [f"stage.{stage.name}.train.epochs" for stage in short.stage] or ["train.epochs"]
        for epochs in (1, 2):
            task = whole.with_recipe(recipes.change(short, dict.fromkeys(keys, epochs)))
            write_atomic(folder / RECIPE, recipes.dumps(task.recipe))
            run_stages(task, folder, where, quiet, quiet)
            (folder / "metrics.json").unlink(missing_ok=True)
            say(f"step {epochs}: trained, evaluated and saved" + ("" if epochs == 1 else " after resuming"))
        needs = _needs(folder, whole, full, images) | {"memory_gb": round(peak_memory(where) / 1e9, 2)}
    devices = f"{processes} devices like this one" if processes > 1 else "this machine"
    say(
        f"the training steps alone: {needs['steps']:,}, about {rounded(3600 * needs['hours'])} on {devices}, "
        f"{needs['memory_gb']:.2g} GB of memory{' each' if processes > 1 else ''} "
        f"(measured in a step of {plural(short.train.batch_size, 'image')})"
    )
    say("everything works with a few images (`gpaco check` reads all): leave out --dry-run to train")
    return {"images": images, "lists": lists, "processes": processes} | needs


def _share(recipe: Recipe, processes: int) -> Recipe:
    """Return the recipe with the batch size of one of several processes."""
    sizes = {one.name: max(1, one.train.batch_size // processes) for one in recipes.stages(recipe)}
    own = replace(recipe, train=replace(recipe.train, batch_size=max(1, recipe.train.batch_size // processes)))
    return recipes.change(own, {f"stage.{one.name}.train.batch_size": sizes[one.name] for one in recipe.stage})


def _needs(folder: Path, task: Task, full: Recipe, images: int) -> dict[str, Any]:
    """Return the steps and hours of the `full` recipe, estimated from the last epoch of each stage of `task`."""
    steps, seconds, tried = 0, 0.0, recipes.stages(task.recipe)
    for at, (stage, whole) in enumerate(zip(tried, recipes.stages(full), strict=True), 1):
        log = (folder if at == len(tried) else stage_folder(folder, at, stage.name)) / "metrics.jsonl"
        number = whole.train.epochs * steps_per_epoch(images, whole.train.batch_size)
        if log.is_file():  # a closed form has no steps
            last = json.loads(log.read_text().splitlines()[-1])["time"]["seconds"]
            size, sample = stage.train.batch_size, len(task.splits.train)
            seen = steps_per_epoch(sample, size) * min(size, sample)
            steps, seconds = steps + number, seconds + number * last * size / seen
    return {"steps": steps, "hours": seconds / 3600}
