"""Trackers get every epoch, offline, and a resumed run continues them."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.trained import halt

import gpaco
from gpaco.errors import EnvironmentProblem, UserError
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.tasks.segmentation.defaults import check_settings
from gpaco.training.trackers import wandb

QUICK: dict[str, Any] = {"batch_size": 64, "lr": 0.05, "long_tail": 20, "report": False, "say": lambda line: None}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of tensorboard about itself
def test_tensorboard_has_every_epoch_once_also_after_resuming(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(KeyboardInterrupt):
        gpaco.train("digits", out=tmp_path, epochs=3, log="tensorboard", show=halt(2, 2), **QUICK)
    gpaco.train("digits", out=tmp_path, epochs=3, log="tensorboard", **QUICK)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    losses = {event.step: event.value for event in found.Scalars("loss")}
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert losses == {row["epoch"]: pytest.approx(row["loss"]) for row in rows}
    assert {"lr", "images_per_second"} <= set(found.Tags()["scalars"])
    gpaco.train("digits", out=tmp_path, epochs=3, **QUICK)  # without the tracker it is the same run


def test_segmenters_may_be_tracked_too() -> None:
    check_settings(recipes.override(Recipe(), ["train.log=tensorboard", "method.name=ce"]))


@pytest.mark.extensive
@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of wandb about itself
def test_wandb_keeps_epochs_on_disk_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    gpaco.train("digits", out=tmp_path, epochs=2, log="wandb", **QUICK)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    name = (tmp_path / "wandb.txt").read_text()
    assert folder.name.endswith(name)
    stored = (folder / f"run-{name}.wandb").read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    for row in rows:
        assert json.dumps(row["loss"]).encode() in stored


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of wandb about itself
def test_wandb_without_a_login_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WANDB_MODE": "online", "WANDB_SILENT": "true", "NETRC": str(tmp_path / "none")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    library = pytest.importorskip("wandb")
    library.teardown()  # it reads its variables once
    with (
        pytest.raises(EnvironmentProblem, match=r"wandb cannot start: .*\nwandb login, or WANDB_MODE=offline"),
        wandb(Recipe(), tmp_path),
    ):
        pass


def test_a_tracker_that_is_not_installed_or_does_not_exist_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpaco.training.trackers.find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"wandb is not installed\n.*pip install '\.\[wandb\]'"):
        gpaco.train("digits", out=tmp_path / "run", log="wandb", **QUICK)
    with pytest.raises(UserError, match="did you mean 'tensorboard'"):
        gpaco.train("digits", out=tmp_path / "run", log="tensorbord", **QUICK)
    assert not (tmp_path / "run").exists()
