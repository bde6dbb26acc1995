"""Logs epochs of a run to TensorBoard or Weights & Biases, in addition to metrics.jsonl."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpaco.errors import EnvironmentProblem, installing
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.files import write_atomic
from gpaco.system.progress import Show
from gpaco.system.words import one_line

Row = dict[str, float]  # numbers of an epoch by name
Send = Callable[[int, Row], None]


def wanted_trackers(recipe: Recipe) -> list[str]:
    """Return the trackers that a recipe names; raise an error if one is not installed."""
    names = [name for name in recipe.train.log.split(",") if name]
    for name in names:
        if find_spec(name) is None:
            raise EnvironmentProblem(f"{name} is not installed", f"{installing(name)}, or leave out --log")
    return names


@contextmanager
def tracked(show: Show, recipe: Recipe, folder: Path) -> Iterator[Show]:
    """Yield `show`, or, in process 0, a function that also sends epochs to the trackers of the recipe."""
    with ExitStack() as stack:
        names = wanted_trackers(recipe) if distributed.rank() == 0 else []
        senders = [stack.enter_context(TRACKERS[name](recipe, folder)) for name in names]

        def show_and_send(row: dict[str, Any]) -> None:
            show(row)
            if "epochs" in row and "steps" not in row:
                for send in senders:
                    send(row["epoch"], numbers(row))

        yield show_and_send if senders else show


def numbers(row: dict[str, Any]) -> Row:
    """Return the numbers of an epoch, except those on the x-axis.

    >>> numbers({"epoch": 3, "epochs": 9, "loss": 0.5, "val_few": None, "time": {"seconds": 2.0}})
    {'loss': 0.5, 'seconds': 2.0}
    """
    flat = row | row["time"]
    return {
        name: value for name, value in flat.items() if name not in ("epoch", "epochs") and type(value) in (int, float)
    }


@contextmanager
def tensorboard(recipe: Recipe, folder: Path) -> Iterator[Send]:
    """Write event files to the folder `tensorboard` of the run; epochs repeated by a resumed run replace old ones."""
    from torch.utils.tensorboard import SummaryWriter

    writers: list[Any] = []

    def send(epoch: int, row: Row) -> None:
        if not writers:
            writers.append(SummaryWriter(str(folder / "tensorboard"), purge_step=epoch))
        for name, value in row.items():
            writers[0].add_scalar(name, value, epoch)
        writers[0].flush()

    try:
        yield send
    finally:
        for writer in writers:
            writer.close()


@contextmanager
def wandb(recipe: Recipe, folder: Path) -> Iterator[Send]:
    """Log to a wandb run, which continues if this run resumes. wandb itself reads WANDB_MODE, WANDB_PROJECT, ..."""
    import wandb as library

    known = folder / "wandb.txt"
    name = known.read_text() if known.is_file() else secrets.token_hex(8)
    write_atomic(known, name)
    about: dict[str, Any] = {"name": folder.resolve().name, "config": {"recipe": recipes.dumps(recipe)}}
    try:
        run = library.init(id=name, resume="allow", dir=folder, **about)
    except library.errors.Error as error:  # no login, no network
        raise EnvironmentProblem(
            f"wandb cannot start: {one_line(error)}", "wandb login, or WANDB_MODE=offline, or leave out --log"
        ) from error
    run.define_metric("*", step_metric="epoch")
    try:
        yield lambda epoch, row: run.log({"epoch": epoch, **row})
    finally:
        run.finish()


TRACKERS = {"tensorboard": tensorboard, "wandb": wandb}
