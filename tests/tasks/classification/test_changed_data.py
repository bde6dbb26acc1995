"""Data that has changed since a run was trained on it: never are images that it has learned scored without a word."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.images import class_folders, save
from helpers.scenes import MODEL, SMALL, save_scene

import gpaco
from gpaco.api.train import dry_run
from gpaco.errors import UserError
from gpaco.tasks.classification.splits import splits_of
from gpaco.training import checkpoint
from gpaco.training.run import Run

QUICK: dict[str, Any] = {"method": "ce", "epochs": 1, "batch_size": 16, "report": False, "say": lambda line: None}
SCENES: dict[str, Any] = {"task": "segmentation", "model": MODEL, "settings": [*SMALL, "train.epochs=1"]}
SCENES |= {"report": False, "say": lambda line: None}
REDRAWN = "held out from training images, is not the one that"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data without parts, a run on it, and the same with a test part that was given."""
    home = tmp_path_factory.mktemp("trained")
    class_folders(home / "data", {"ant": 60, "bee": 40})
    shutil.copytree(home / "data", home / "split" / "train")
    class_folders(home / "split" / "test", {"ant": 5, "bee": 5}, seed=500)
    gpaco.train(home / "data", out=home / "run", **QUICK)
    gpaco.train(home / "split", out=home / "split-run", **QUICK)
    return home


@pytest.fixture
def home(trained: Path, tmp_path: Path) -> Path:
    """A copy of it all whose runs have their data in the copy."""
    shutil.copytree(trained, tmp_path / "home")
    for recipe in (tmp_path / "home").glob("*/recipe.toml"):
        recipe.write_text(recipe.read_text().replace(str(trained), str(tmp_path / "home")))
    return tmp_path / "home"


def scenes(root: Path, number: int) -> Path:
    for k in range(number):
        save_scene(root / "images" / f"{k}.png", root / "masks" / f"{k}.png", k)
    return root


def go_back(run: Path) -> None:
    """As if the run had not finished."""
    (run / "metrics.json").unlink()


def test_an_added_image_draws_the_test_part_anew_and_nothing_is_scored_on_it(home: Path) -> None:
    before = splits_of(Run(home / "run").recipe)
    save(home / "data" / "ant" / "00.png", seed=999)
    now = splits_of(Run(home / "run").recipe)
    assert set(before.train.names) & set(now.test.names if now.test else ())
    for action in (
        lambda: gpaco.evaluate(home / "run"),
        lambda: gpaco.evaluate(home / "run", home / "split" / "test", tune_prior=True),
        lambda: gpaco.robustness(home / "run", corruptions="fog", severities="1"),
    ):
        with pytest.raises(UserError, match=REDRAWN) as error:
            action()
        assert error.value.exit_code == 2
        assert "\n" not in error.value.cause + error.value.remedy
    assert not (home / "run" / "prior.json").exists()
    assert gpaco.evaluate(home / "run", home / "split" / "test")["n"] == 10  # other data is as good as ever
    (home / "data" / "ant" / "00.png").unlink()
    assert gpaco.evaluate(home / "run", tune_prior=True)["n"] == Run(home / "run").metrics["n"]


def test_a_run_that_left_out_other_images_is_no_part_of_an_ensemble(home: Path) -> None:
    other = gpaco.train(home / "data", out=home / "other", settings=["data.seed=1"], **QUICK)
    with pytest.raises(UserError, match=REDRAWN):
        gpaco.evaluate([home / "run", other.folder])
    assert gpaco.evaluate([home / "run", other.folder], home / "split" / "test")["n"] == 10


def test_a_test_part_that_was_given_may_change_and_it_is_said(home: Path) -> None:
    run, said = home / "split-run", list[str]()
    changed = "the test split of the data has changed since the run was trained"
    gpaco.evaluate(run, say=said.append)
    save(home / "split" / "train" / "ant" / "00.png", seed=998)  # validation is drawn from it, the test part is not
    gpaco.evaluate(run, say=said.append)
    assert changed not in said
    with pytest.raises(UserError, match="the val split, held out"):
        gpaco.evaluate(run, tune_prior=True)
    save(home / "split" / "test" / "ant" / "00.png", seed=999)
    assert gpaco.evaluate(run, say=said.append)["n"] == 11
    assert said.count(changed) == 1


def test_a_run_goes_on_only_with_the_list_of_images_that_it_began_with(home: Path) -> None:
    go_back(home / "run")
    shutil.move(home / "data" / "ant" / "0.png", home / "data" / "ant" / "zero.png")  # as many of each class as before
    with pytest.raises(UserError, match="has changed since it started: different images") as error:
        gpaco.train(home / "data", out=home / "run", **QUICK)
    assert "restore the data" in error.value.remedy
    shutil.move(home / "data" / "ant" / "zero.png", home / "data" / "ant" / "0.png")
    assert gpaco.train(home / "data", out=home / "run", **QUICK).metrics["n"] == 20


def test_a_run_that_has_not_noted_its_images_is_taken_as_it_is(home: Path) -> None:
    found = checkpoint.load(home / "run" / "checkpoints")
    found.state["card"]["images"] = {}  # as in a converted run
    checkpoint.save(home / "run" / "checkpoints", found.step, found.tensors, found.state)
    save(home / "data" / "ant" / "00.png", seed=999)
    assert gpaco.evaluate(home / "run")["n"] == 20


def test_scenes_that_were_drawn_anew_are_neither_scored_nor_trained_on(tmp_path: Path) -> None:
    data = scenes(tmp_path / "data", 20)
    run = gpaco.train(data, out=tmp_path / "run", **SCENES)
    assert gpaco.evaluate(run)["n"] == run.metrics["n"]
    other = gpaco.train(data, out=tmp_path / "other", **SCENES | {"settings": [*SCENES["settings"], "data.seed=3"]})
    with pytest.raises(UserError, match=REDRAWN):  # the baseline learned some of the images
        gpaco.robustness(run, baseline=other.folder, corruptions="fog", severities="1")
    for moved in (shutil.copytree(data, tmp_path / "copy"), data.rename(tmp_path / "moved")):
        told: list[str] = []
        gpaco.evaluate(run, moved, say=told.append)
        assert any(line.startswith("the run was trained on 1") for line in told), told
    with pytest.raises(UserError, match="the data of the run is no longer at"):
        gpaco.evaluate(run)
    (tmp_path / "moved").rename(data)
    save_scene(data / "images" / "00.png", data / "masks" / "00.png", 99)
    for action in (
        lambda: gpaco.evaluate(run),
        lambda: gpaco.robustness(run, corruptions="fog", severities="1"),
    ):
        with pytest.raises(UserError, match=REDRAWN):
            action()
    go_back(run.folder)
    with pytest.raises(UserError, match=r"has changed since it started: different .*images"):
        gpaco.train(data, out=run.folder, **SCENES)


def test_a_dry_run_on_scenes_held_back_compares_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    dry_run(scenes(tmp_path / "data", 12), **SCENES | {"say": said.append, "report": True})
    assert said[-1].endswith("(`gpaco check` reads all): leave out --dry-run to train")


def test_resuming_on_changed_or_moved_data_names_the_data_not_the_settings_chosen_from_it(home: Path) -> None:
    usual = {key: value for key, value in QUICK.items() if key != "batch_size"}
    gpaco.train(home / "data", out=home / "auto", **usual)
    go_back(home / "auto")
    (home / "data").rename(home / "moved")
    with pytest.raises(UserError, match="has its data at") as error:
        gpaco.train(home / "moved", out=home / "auto", **usual)
    assert error.value.remedy == "move the data back, or choose another --out"
    (home / "moved").rename(home / "data")
    class_folders(home / "data", {"ant": 400, "bee": 400}, seed=1000)  # a larger batch suits it
    with pytest.raises(UserError, match=r"auto has changed since it started"):
        gpaco.train(home / "data", out=home / "auto", **usual)
