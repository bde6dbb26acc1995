"""A run is a folder. What is in it, and how a model comes out of it again."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from gpaco.errors import UserError, nearest
from gpaco.models import backbones
from gpaco.models.classifier import Classifier
from gpaco.models.ghost_norm import ghost_batch
from gpaco.models.lora import merged
from gpaco.recipes.recipe import load as load_recipe
from gpaco.recipes.recipe import stages
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification.priors import Correction, read_tuned
from gpaco.training import checkpoint

if TYPE_CHECKING:
    from gpaco.data.samples import Splits
    from gpaco.tasks.segmentation.evaluation import ScenePredictor
    from gpaco.tasks.segmentation.scenes import SceneSplits


@dataclass(frozen=True)
class Run:
    """A finished or unfinished run."""

    folder: Path

    @property
    def recipe(self) -> Recipe:
        return load_recipe(self.folder / "recipe.toml")

    @property
    def metrics(self) -> dict[str, Any]:
        """The final figures; an error where the run has not come to its end."""
        return dict(json.loads(self._file("metrics.json").read_text()))

    def check_finished(self) -> None:
        """Raise an error if the run has not come to its end."""
        self._file("metrics.json")

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row per epoch."""
        return [json.loads(line) for line in self._file("metrics.jsonl").read_text().splitlines()]

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise UserError(
                f"{self.folder} has no {name}: the run has not come to its end", "give the same train command again"
            )
        return path


def is_run(path: Path) -> bool:
    """A folder with a recipe.toml is a run, anything else is data."""
    return (path / "recipe.toml").is_file()


def has_begun(path: Path) -> bool:
    """Whether there is something to go on with: a run that failed before its first checkpoint is none yet."""
    return is_run(path) and any(path.glob("**/checkpoints/*"))


def as_run(run: "Run | Path | str") -> Run:
    """The run at a path."""
    if isinstance(run, Run):
        return run
    path = Path(run)
    if not is_run(path):
        what = "is not a run: it has no recipe.toml" if path.exists() else "does not exist"
        inside = sorted(path.glob("*/recipe.toml")) or sorted(path.glob("*/seed-0/recipe.toml"))  # of a comparison
        such = f"one of the runs in it, such as {inside[0].parent}" if inside else ""
        raise UserError(f"{path} {what}", f"give {such or 'the folder that `gpaco train --out` wrote'}")
    return Run(path)


def unfinished(run: "Run | Path | str") -> str:
    """A line about a run that has not come to its end; nothing about one that has."""
    run = as_run(run)
    done, epochs = newest(run, ()).state["progress"]["epoch"], stages(run.recipe)[-1].train.epochs
    return "" if done >= epochs else f"{run.folder} has not come to its end: {done} of {epochs} epochs are done"


class Predictor(nn.Module):
    """Images to logits: the trained network, its normalization, its tuned prior, and what it knows of its classes.

    Takes (N, 3, H, W), uint8 or floats from 0 to 1, at the size it was trained on.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: Classifier, about: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.about = about
        self.classes: tuple[str, ...] = tuple(about["classes"])
        self.register_buffer("mean", torch.tensor(about["mean"]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(about["std"]).view(1, 3, 1, 1), persistent=False)
        tuned = about.get("tuned")
        self.correction = Correction(about, unbiased=tuned["unbiased"], tau=tuned["tau"]) if tuned else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        images = images / 255 if images.dtype == torch.uint8 else images
        logits: Tensor = self.correction(self.model.classify((images - self.mean) / self.std))
        return logits


def build_model(about: dict[str, Any], weights: str = "") -> Classifier:
    """The network that `about` describes."""
    backbone, num_features, *_ = backbones.build(
        about["model"], size=about["size"], drop_path=about["drop_path"], pool=about["pool"], weights=weights
    )
    model = Classifier(
        backbone,
        num_features,
        len(about["classes"]),
        dim=about["dim"],
        projector=about["projector"],
        hidden=about["hidden"],
    )
    if about["ghost_batch"]:
        ghost_batch(model, about["ghost_batch"])
    return model


def load(
    run: Run | Path | str, *, which: str = "best", device: str | torch.device = "cpu", tuned: bool = True
) -> "Predictor | ScenePredictor":
    """The model of a run, ready to predict: images (N, 3, H, W) -> logits (N, C), of a segmenter (N, C, H, W).

    Adapters are merged into plain layers. A prior that was tuned for this checkpoint is part of the model.

    Args:
        which: "best" (by validation data; the last one where there is none) or "last".
        tuned: False leaves a tuned prior out.
    """
    run = as_run(run)
    if run.recipe.train.task == "segmentation":
        from gpaco.tasks.segmentation.evaluation import load_segmenter

        return load_segmenter(run, which=which, device=device)
    return load_classifier(run, which=which, device=device, tuned=tuned)


def load_classifier(
    run: Run | Path | str, *, which: str = "best", device: str | torch.device = "cpu", tuned: bool = True
) -> Predictor:
    """`load` of a run that classifies; one that does not is an error."""
    run = as_run(run)
    if run.recipe.train.task != "classification":
        raise UserError(f"{run.folder} is a run of {run.recipe.train.task}", "give a run that classifies images")
    found = chosen(run, which)
    about = dict(found.state["about"])
    model = build_model(about)
    model.load_state_dict(merged(weights_of(run, found)))
    share = found.tensors["extra"].get("loss.center_share")
    about["center_share"] = None if share is None else share.tolist()
    about["step"] = found.step
    about["tuned"] = None
    predictor = Predictor(model, about).to(device).eval()
    kept = read_tuned(run.folder) if tuned else None
    return with_prior(predictor, kept) if kept and kept["step"] == found.step else predictor


def with_prior(predictor: Predictor, tuned: dict[str, Any]) -> Predictor:
    """The same model with a prior that was tuned for it."""
    about = predictor.about | {"tuned": tuned, "assumes": "uniform"}  # macro recall chose it
    return Predictor(predictor.model, about).to(predictor.mean.device).eval()


def chosen(run: Run, which: str = "best", parts: Sequence[str] | None = None) -> checkpoint.Checkpoint:
    """The checkpoint that `which` names, all of it or only some parts."""
    if which not in ("best", "last"):
        raise UserError(
            f"a checkpoint is best or last, got {which!r}{nearest(which, ['best', 'last'])}", "leave it out"
        )
    found = newest(run, parts)
    best = found.state["progress"]["best_step"]
    if which == "last" or best is None:
        return found
    return checkpoint.load(run.folder / "checkpoints" / f"step-{best:08d}", parts)


def weights_of(run: Run, found: checkpoint.Checkpoint) -> dict[str, Tensor]:
    """All weights of a checkpoint's network, averaged if the run averages: those that validation data judged.

    A backbone that was not trained is in the run once, in a file beside.
    """
    part = "ema" if "ema" in found.tensors else "model"
    expected = found.state["about"].get("backbone")
    if expected is None:
        return found.tensors[part]
    path = run.folder / "backbone.safetensors"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{run.folder} has lost its backbone.safetensors", "restore it from a copy") from None
    if hashlib.sha256(content).hexdigest() != expected:
        raise UserError(f"{path} is damaged: it is not what was written", "restore it from a copy")
    return found.tensors[part] | {f"backbone.{name}": value for name, value in load_tensors(content).items()}


def newest(run: Run, parts: Sequence[str] | None = None) -> checkpoint.Checkpoint:
    """The newest good checkpoint."""
    if not checkpoint.find(run.folder / "checkpoints"):
        raise UserError(f"{run.folder} has no checkpoint yet", "give the same train command again")
    return checkpoint.load(run.folder / "checkpoints", parts)


def compare_part(
    run: Run, splits: "Splits | SceneSplits", name: str, say: Callable[[str], None] = lambda line: None
) -> None:
    """Say that a part of the data is another one than it was when the run was trained.

    It is an error if the part was drawn from training images: drawn anew, it has some that the run was trained on.
    """
    known = newest(run, ()).state["about"].get("images")
    hashes = [part.list_hash() for own, part in splits.parts() if own == name]
    if known is None or hashes in ([], [known.get(name)]):
        return
    if name in splits.held:
        raise UserError(
            f"the {name} part, held back from training images, is not the one that {run.folder} left out of training: "
            "the run may have learned some of it",
            "put the data back as it was, or train anew; to evaluate on other data: RUN DATA",
        )
    say(f"the {name} part of the data has changed since the run was trained")


def stage_folder(folder: Path, number: int, name: str) -> Path:
    """Where a stage of a run is, counted from 1; the last one is in the folder of the run itself."""
    return folder / f"stage-{number}-{name}"


def stages_of(run: "Run | Path | str") -> list[tuple[Run, Recipe]]:
    """The stages of a run whose checkpoints are still there, and the recipe of each; the last one is the run."""
    run = as_run(run)
    *before, last = stages(run.recipe)
    homes = [(Run(stage_folder(run.folder, k, recipe.name)), recipe) for k, recipe in enumerate(before, 1)]
    return [(home, recipe) for home, recipe in homes if checkpoint.find(home.folder / "checkpoints")] + [(run, last)]


def load_classifiers(runs: "Runs", *, which: str = "best", device: str | torch.device = "cpu") -> list[Predictor]:
    """The models of one run or of several that make an ensemble: trained to classify, and of the same classes."""
    several = as_runs(runs)
    predictors = [load_classifier(run, which=which, device=device) for run in several]
    for run, predictor in zip(several, predictors, strict=True):
        if not predictor.about["classifies"]:
            raise UserError(
                f"{run.folder} is a stage that trains features: its classifier has learned nothing",
                "give the folder of the whole run, the one above it",
            )
    if any(predictor.classes != predictors[0].classes for predictor in predictors):
        raise UserError("these runs do not have the same classes", "make an ensemble of runs on the same data")
    return predictors


Runs = Run | Path | str | Sequence[Run | Path | str]


def as_runs(runs: Runs) -> list[Run]:
    """One run or several, as a list."""
    return [as_run(runs)] if isinstance(runs, Run | Path | str) else [as_run(run) for run in runs]
