"""Settings of a segmentation: which there are, which were released for which network."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.scenes import save_scene, scene_folder

from gpaco.errors import UserError
from gpaco.recipes import recipe as recipes
from gpaco.recipes.request import requested
from gpaco.recipes.settings import SECTIONS, Data, Recipe, Stage
from gpaco.tasks.segmentation.defaults import HAS, LITE_RATE, check_settings, resolve, usual_size
from gpaco.tasks.segmentation.readers.read import read_scenes
from gpaco.tasks.segmentation.scenes import SceneSplits
from gpaco.tasks.segmentation.splits import scene_splits, with_parts
from gpaco.tasks.segmentation.start import choose_start


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> SceneSplits:
    return read_scenes(scene_folder(tmp_path_factory.mktemp("data")))


def resolved(splits: SceneSplits, *settings: str, **flags: Any) -> tuple[dict[str, Any], list[str]]:
    """Every setting by its name, and what was said."""
    recipe, given = requested("data", None, settings, {"task": "segmentation"} | flags)
    said: list[str] = []
    result = resolve(choose_start(recipe, said.append), given, splits, torch.device("cpu"), said.append)
    check_settings(result)  # as when the run goes on
    return {
        f"{section}.{key}": value for section in SECTIONS for key, value in vars(getattr(result, section)).items()
    }, said


RELEASE = recipes.load("ade20k-upernet-swin-t-gpaco")


def test_swin_gets_the_settings_that_were_released_for_it(splits: SceneSplits) -> None:
    found, said = resolved(splits, model="upernet-swin-tiny", epochs=30_000)
    for section, keys in (
        ("optimizer", ("name", "lr", "weight_decay", "decay_bias", "betas")),
        ("schedule", ("name", "power", "min_lr", "per")),
        ("method", ("alpha", "temperature")),
        ("model", ("drop_path",)),
    ):
        for key in keys:
            assert found[f"{section}.{key}"] == getattr(getattr(RELEASE, section), key), key
    assert found["schedule.warmup"] * (8 // found["train.batch_size"]) == 1500
    after = said[said.index("settings as released (--set KEY=VALUE changes one):") + 1]
    assert after.startswith("  optimizer.name = adamw, optimizer.lr = 6e-05")


def test_stages_keep_their_own_crops(splits: SceneSplits) -> None:
    recipe = recipes.loads(
        "[train]\ntask = 'segmentation'\n[[stage]]\nname = 'small'\nsegmentation.crop = [64, 64]\n"
        "[[stage]]\nname = 'large'\nsegmentation.crop = [96, 96]\n"
    )
    found = resolve(choose_start(recipe, lambda _: None), set(), splits, torch.device("cpu"), lambda _: None)
    assert [stage.segmentation.crop for stage in recipes.stages(found)] == [(64, 64), (96, 96)]


def test_a_warm_up_leaves_most_of_a_short_training(splits: SceneSplits) -> None:
    assert resolved(splits, model="upernet-swin-tiny", epochs=12)[0]["schedule.warmup"] == 2


def test_adamw_alone_brings_its_own_rate_and_sgd_stays_if_asked_for(splits: SceneSplits) -> None:
    found, _ = resolved(splits, "optimizer.name=adamw", model="deeplabv3plus-resnet18")
    assert (found["optimizer.lr"], found["optimizer.weight_decay"]) == (6e-5, 0.01)
    assert not found["optimizer.decay_bias"]
    assert found["model.drop_path"] == 0
    found, _ = resolved(splits, "optimizer.name=sgd", model="upernet-swin-tiny")
    assert (found["optimizer.lr"], found["schedule.min_lr"], found["schedule.warmup"]) == (0.01, 1e-4, 0)
    found, _ = resolved(splits, model="upernet-swin-tiny", lr=1e-3)
    assert (found["optimizer.name"], found["optimizer.lr"], found["schedule.min_lr"]) == ("adamw", 1e-3, 0)
    found, _ = resolved(splits)
    assert (found["optimizer.name"], found["optimizer.lr"]) == ("adamw", LITE_RATE)
    found, _ = resolved(splits, model="deeplabv3plus-resnet18")
    assert (found["optimizer.name"], found["optimizer.lr"]) == ("sgd", 0.01)


def test_a_setting_that_segmentation_has_not_is_refused_in_every_stage() -> None:
    for section, keys in HAS.items():
        assert keys <= set(vars(getattr(Recipe(), section))), section
    with pytest.raises(UserError, match=r"method.memory = 77 has no effect on segmentation"):
        check_settings(recipes.change(Recipe(), {"method.memory": 77}))
    for change, message in (
        (("method", "name", "balanced-softmax"), "no method 'balanced-softmax' in stage 'second'"),
        (("train", "sampler", "balanced"), "train.sampler = 'balanced' in stage 'second' has no effect"),
    ):
        with pytest.raises(UserError, match=message):
            check_settings(replace(Recipe(), stage=(Stage("first"), Stage("second", (change,)))))


def test_what_a_recipe_expects_are_the_images_before_any_are_held_back(tmp_path: Path) -> None:
    for k in range(10):
        save_scene(tmp_path / "images" / f"{k}.png", tmp_path / "masks" / f"{k}.png", k)
    data = Data(path=str(tmp_path), expect_images=10)
    assert len(scene_splits(replace(Recipe(), data=data)).train) == 7
    with pytest.raises(UserError, match="expects 7 training images, got 10"):
        scene_splits(replace(Recipe(), data=replace(data, expect_images=7)))


def test_sizes_are_those_of_a_usual_picture_not_of_the_first(tmp_path: Path) -> None:
    for k in range(12):
        size = (20, 16) if k < 3 else (40, 56) if k < 10 else (200, 300)
        save_scene(tmp_path / "images" / f"{k:02}.png", tmp_path / "masks" / f"{k:02}.png", k, size=size)
    (tmp_path / "images" / "06.png").write_bytes(b"no image")
    assert usual_size(read_scenes(tmp_path).train) == (40, 56)


def test_a_validation_part_that_is_reported_chooses_nothing(tmp_path: Path) -> None:
    read = read_scenes(scene_folder(tmp_path, train=10, val=3, test=0))
    splits = with_parts(replace(read, test=None), Data(validation=0.2))
    assert (len(splits.train), len(splits.val or ()), splits.test) == (8, 2, read.val)
    asked = with_parts(replace(read, test=None), Data(validation=0.2, evaluate_on="val"))
    assert (asked.val, asked.test) == (read.val, None)


def test_a_split_that_is_asked_for_by_name_has_to_be_there(tmp_path: Path) -> None:
    read = read_scenes(scene_folder(tmp_path, train=10, val=3, test=3))
    with pytest.raises(UserError, match="no test split to report on, only train and val") as caught:
        with_parts(replace(read, test=None), Data(evaluate_on="test"))
    assert "--set data.evaluate_on=val" in caught.value.remedy
    with pytest.raises(UserError, match="no val split to report on, only train and test") as caught:
        with_parts(replace(read, val=None), Data(validation=0, evaluate_on="val"))
    assert "--validation 0.1" in caught.value.remedy
