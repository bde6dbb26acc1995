"""A run is a folder: its contents, and how to load its model."""

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import load as load_tensors
from torch import Tensor

from gpaco import __version__
from gpaco.data.samples import DataSplits
from gpaco.errors import UserError, nearest
from gpaco.recipes.recipe import fill, stages
from gpaco.recipes.recipe import load as load_recipe
from gpaco.recipes.settings import Recipe
from gpaco.system.progress import Say, quiet
from gpaco.training import checkpoint

RECIPE = "recipe.toml"  # in a run folder: every setting; the mark of a run
TUNING = "tuning.json"  # in a run folder: settings chosen by a search, and all candidates
SHARDS = "shards.json"  # in a run folder: the index of the tar shards it was trained on
BAD_IMAGES = "bad_images.csv"  # in a run folder: the images that were left out


@dataclass(frozen=True)
class Run:
    """A finished or unfinished run."""

    folder: Path

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, with the settings chosen by a search."""
        recipe, tuning = load_recipe(self.folder / RECIPE), self.folder / TUNING
        return fill(recipe, json.loads(tuning.read_text())["chosen"]) if tuning.is_file() else recipe

    @property
    def metrics(self) -> dict[str, Any]:
        """The final metrics; raises an error if the run has not finished."""
        self.check_finished()
        return dict(json.loads(self._file("metrics.json").read_text()))

    def check_finished(self) -> None:
        """Raise an error if the run has not finished, or if there was nothing to evaluate it on."""
        self.check_evaluated()
        self._file("metrics.json")

    def check_evaluated(self) -> None:
        """Raise an error if all epochs are done and there was nothing to evaluate on."""
        written, begun = (self.folder / "metrics.json").is_file(), checkpoint.find(self.folder / "checkpoints")
        if not written and begun and not unfinished(self):
            if not self.recipe.data.path:
                raise not_evaluated(str(self.folder))
            split = "val" if stages(self.recipe)[-1].data.evaluate_on == "val" else "test"
            if split not in newest(self).state["card"]["images"]:
                raise no_test_images(str(self.folder))

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row per epoch."""
        return [json.loads(line) for line in self._file("metrics.jsonl").read_text().splitlines()]

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise UserError(
                f"{self.folder} has no {name}: the run has not finished", "rerun the same train command to resume"
            )
        return path


def not_evaluated(what: str) -> UserError:
    return UserError(
        f"{what} has no metrics: it was converted, not trained here", "`gpaco evaluate RUN DATA` prints them"
    )


def no_test_images(what: str) -> UserError:
    return UserError(
        f"{what} has no metrics: the data is too small for a test split, so there was nothing to evaluate on",
        "add images, or folders train and test, and train again; or `gpaco evaluate RUN DATA` on other data",
    )


def is_run(path: Path) -> bool:
    """Return whether a path is a run: a folder with a recipe.toml."""
    return (path / RECIPE).is_file()


def has_begun(path: Path) -> bool:
    """Return whether a run has finished, or has a checkpoint to resume from."""
    names = ("step-*", f".step-*{checkpoint.REPLACED}")  # the second if a process was killed while saving
    saved = (any(path.glob(f"**/checkpoints/{name}")) for name in names)
    return is_run(path) and ((path / "metrics.json").is_file() or any(saved))


def as_run(run: "Run | Path | str") -> Run:
    """Return the run at a path."""
    if isinstance(run, Run):
        return run
    path = Path(run)
    if not is_run(path):
        what = "is not a run: it has no recipe.toml" if path.exists() else "does not exist"
        inside = sorted(path.glob("*/recipe.toml")) or sorted(path.glob("*/seed-0/recipe.toml"))  # of a comparison
        such = f"one of the runs in it, such as {inside[0].parent}" if inside else ""
        if str(run).startswith("hub:") or (path / "config.json").is_file():
            raise UserError(f"{run} is a shared model, not a run", "use it in Python: gpaco.load")
        if path.suffix == ".pt2":
            such = "the run it was exported from, or an .onnx file"
        raise UserError(f"{path} {what}", f"give {such or 'the folder that `gpaco train --out` wrote'}")
    return Run(path)


def unfinished(run: "Run | Path | str") -> str:
    """Return a line about a run that has not finished; "" if it has."""
    run = as_run(run)
    done, epochs = newest(run).state["position"]["epoch"], stages(run.recipe)[-1].train.epochs
    return "" if done >= epochs else f"{run.folder} has not finished: {done} of {epochs} epochs are done"


def select_checkpoint(run: Run, which: str = "best", parts: Sequence[str] = ()) -> checkpoint.Checkpoint:
    """Return the checkpoint that `which` names, with some of its parts."""
    if which not in ("best", "last"):
        raise UserError(
            f"the checkpoint must be best or last, got {which!r}{nearest(which, ['best', 'last'])}",
            "leave it out for the best one",
        )
    found = newest(run)
    best = found.state["position"]["best_step"]
    path = found.path if which == "last" or best is None else found.path.with_name(f"step-{best:08d}")
    if not path.is_dir():
        raise UserError(
            f"{run.folder} no longer has its best checkpoint, {path.name}",
            "restore it from a backup, or use the newest with evaluate or export: --checkpoint last",
        )
    return checkpoint.load(path, parts)


def weights_of(run: Run, found: checkpoint.Checkpoint) -> dict[str, Tensor]:
    """Read all weights of the network; if the run averages weights, the averaged ones, as in validation.

    No other part of the checkpoint is read. A frozen backbone is stored once, beside the checkpoints, and its SHA-256
    in the card.
    """
    part, backbone = "ema" if "ema" in found.parts else "model", found.state["card"].get("backbone")
    weights = checkpoint.load(found.path, [part]).tensors[part]
    if backbone is None:
        return weights
    return weights | {f"backbone.{name}": value for name, value in frozen_backbone(run.folder, backbone).items()}


def frozen_backbone(folder: Path, sha256: str) -> dict[str, Tensor]:
    """Read the weights of the backbone of a run that trained only a head; raise an error if they have changed."""
    path = folder / "backbone.safetensors"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{folder} has no backbone.safetensors", "restore it from a backup") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"{path} is damaged: its contents have changed", "restore it from a backup")
    return load_tensors(content)


def newest(run: Run) -> checkpoint.Checkpoint:
    """Return the newest checkpoint without its parts; raise an error if it is damaged, since older models differ."""
    folder = run.folder / "checkpoints"
    if not checkpoint.find(folder):
        raise UserError(f"{run.folder} has no checkpoint yet", "rerun the same train command")
    found = checkpoint.load(folder, ())
    if found.warnings and found.path.name != checkpoint.latest_name(folder):  # training has not continued past it
        raise checkpoint.DamagedError(
            found.warnings[0], f"restore it from a backup, or delete that folder to use {found.path.name}"
        )
    return found


def result_facts(recipe: Recipe, state: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Return what `metrics.json` says about a run, given the state of its newest checkpoint."""
    return {
        "evaluated_on": split,
        "selected_on": "last epoch" if state["position"]["best_step"] is None else "val",
        "seed": recipe.train.seed,
        "method": recipe.method.name,
        "environment": state["environment"] | {"gpaco": __version__, "python": platform.python_version()},
    }


def missing_data(run: Run) -> str:
    """Return the path of the run's data if it does not exist any more, else ""."""
    path = run.recipe.data.path
    return "" if path in ("", "digits") or Path(path).exists() else path


def check_data(run: Run) -> None:
    """Raise an error if the run has no data, or if it does not exist any more."""
    if not run.recipe.data.path:
        raise UserError(
            f"{run.folder} was converted, so it has no data of its own", "give data: gpaco evaluate RUN DATA"
        )
    if gone := missing_data(run):
        raise UserError(f"the data of the run is no longer at {gone!r}", "give its new path after the run")


def check_split(run: Run, splits: DataSplits[Any], name: str, say: Say = quiet) -> None:
    """Warn if a split has changed since the run was trained.

    It is an error if the split was drawn from training images: a new draw would include some of the training images.
    """
    known = newest(run).state["card"]["images"]
    hashes = [part.list_hash for own, part in splits.parts() if own == name]
    if not known or hashes in ([], [known.get(name)]):
        return
    if name in splits.held:
        raise UserError(
            f"the {name} split, held out from training images, is not the one that {run.folder} held out, so "
            "the run may have been trained on some of it",
            "restore the data, or train again; to evaluate on other data: gpaco evaluate RUN DATA",
        )
    say(f"the {name} split of the data has changed since the run was trained")


def stage_folder(folder: Path, number: int, name: str) -> Path:
    """Return the folder of a stage, counted from 1; the last stage is in the folder of the run itself."""
    return folder / f"stage-{number}-{name}"


def stages_of(run: "Run | Path | str") -> list[tuple[Run, Recipe]]:
    """Return the stages whose checkpoints still exist, each with its recipe; the last one is the run itself."""
    run = as_run(run)
    *before, last = stages(run.recipe)
    homes = [(Run(stage_folder(run.folder, k, recipe.name)), recipe) for k, recipe in enumerate(before, 1)]
    return [(home, recipe) for home, recipe in homes if checkpoint.find(home.folder / "checkpoints")] + [(run, last)]


Runs = Run | Path | str | Sequence[Run | Path | str]


def as_runs(runs: Runs) -> list[Run]:
    """Return one run or several as a list."""
    several = [as_run(run) for run in ([runs] if isinstance(runs, Run | Path | str) else runs)]
    if not several:
        raise UserError("there is no run", "give one or more runs")
    return several


def of_one_task(runs: Runs) -> list[Run]:
    """Return one run or several as a list; raise an error if their tasks differ."""
    several = as_runs(runs)
    if len({run.recipe.train.task for run in several}) > 1:
        raise UserError("these runs have different tasks", "give only classifiers, or only segmenters")
    return several
