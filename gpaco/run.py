"""A run is a folder. What is in it, and how a model comes out of it again."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gpaco import backbones, checkpoint
from gpaco.errors import UserError, nearest
from gpaco.model import Classifier, ghost_batch
from gpaco.recipe import load as load_recipe
from gpaco.recipe import stages
from gpaco.settings import Recipe


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


def as_run(run: "Run | Path | str") -> Run:
    """The run at a path."""
    if isinstance(run, Run):
        return run
    path = Path(run)
    if not is_run(path):
        what = "is not a run: it has no recipe.toml" if path.exists() else "does not exist"
        raise UserError(f"{path} {what}", "give the folder that `gpaco train --out` wrote")
    return Run(path)


class Predictor(nn.Module):
    """Images to logits: the trained network with its normalisation, and what it knows of its classes.

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

    def forward(self, images: Tensor) -> Tensor:
        images = images / 255 if images.dtype == torch.uint8 else images
        return self.model.classify((images - self.mean) / self.std)


def build_model(about: dict[str, Any], weights: str = "") -> Classifier:
    """The network that `about` describes."""
    backbone, num_features, *_ = backbones.build(
        about["model"], size=about["size"], drop_path=about["drop_path"], weights=weights
    )
    model = Classifier(backbone, num_features, len(about["classes"]), dim=about["dim"], projector=about["projector"])
    if about["ghost_batch"]:
        ghost_batch(model, about["ghost_batch"])
    return model


def load(run: Run | Path | str, *, which: str = "best", device: str | torch.device = "cpu") -> Any:
    """The model of a run, ready to predict: images (N, 3, H, W) -> logits (N, C), of a segmenter (N, C, H, W).

    `which` is "best" (by validation data; the last one where there is none) or "last".
    """
    found = chosen(as_run(run), which)
    about = dict(found.state["about"])
    weights = found.tensors.get("ema") or found.tensors["model"]
    if about.get("task") == "segmentation":
        from gpaco.segmentation.evaluating import ScenePredictor, build_segmenter

        segmenter = build_segmenter(about)
        segmenter.load_state_dict(weights)
        return ScenePredictor(segmenter, about).to(device).eval()
    model = build_model(about)
    model.load_state_dict(weights)
    share = found.tensors["extra"].get("loss.centre_share")
    about["centre_share"] = None if share is None else share.tolist()
    return Predictor(model, about).to(device).eval()


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


def newest(run: Run, parts: Sequence[str] | None = None) -> checkpoint.Checkpoint:
    """The newest good checkpoint."""
    if not checkpoint.find(run.folder / "checkpoints"):
        raise UserError(f"{run.folder} has no checkpoint yet", "give the same train command again")
    return checkpoint.load(run.folder / "checkpoints", parts)


def stage_folder(folder: Path, number: int, name: str) -> Path:
    """Where a stage of a run is, counted from 1; the last one is in the folder of the run itself."""
    return folder / f"stage-{number}-{name}"


def stages_of(run: "Run | Path | str") -> list[tuple[Run, Recipe]]:
    """The stages of a run whose checkpoints are still there, and the recipe of each; the last one is the run."""
    run = as_run(run)
    *before, last = stages(run.recipe)
    homes = [(Run(stage_folder(run.folder, k, recipe.name)), recipe) for k, recipe in enumerate(before, 1)]
    return [(home, recipe) for home, recipe in homes if checkpoint.find(home.folder / "checkpoints")] + [(run, last)]


Runs = Run | Path | str | Sequence[Run | Path | str]


def as_runs(runs: Runs) -> list[Run]:
    """One run or several, as a list."""
    return [as_run(runs)] if isinstance(runs, Run | Path | str) else [as_run(run) for run in runs]
