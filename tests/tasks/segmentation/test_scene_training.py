"""Training a segmenter as a user does it: several processes, what is refused, what is guessed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.commands import assert_same_run, checkpoint_files, run
from helpers.images import tree_hash
from helpers.scenes import MODEL, SMALL, scene, scene_folder
from helpers.trained import halt
from safetensors.torch import save_file

import gpaco
from gpaco.api.train import dry_run
from gpaco.errors import UserError
from gpaco.tasks.segmentation.evaluation import segment
from gpaco.tasks.segmentation.network import build
from gpaco.tasks.segmentation.predictor import load_segmenter
from gpaco.training import checkpoint

# Everything that has state of its own is on.
STATE = ("train.ema=0.9",)
QUICK = {"task": "segmentation", "model": MODEL, "epochs": 8, "report": False, "say": lambda line: None}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scene_folder(tmp_path_factory.mktemp("data"), train=40)


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "undisturbed"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    gpaco.train(data, out=out, settings=[*SMALL, *STATE], **QUICK)
    torch.set_num_threads(before)
    return out


SHORT = ("--set", "train.epochs=4")  # of two processes: each takes seconds to begin


def words(data: Path, out: Path, *more: object) -> list[object]:
    settings = [word for setting in (*SMALL, *STATE, "train.report=false") for word in ("--set", setting)]
    return ["train", data, "--task", "segmentation", "--model", MODEL, "--epochs", 8, *settings, "--out", out, *more]


@pytest.mark.slow
def test_workers_change_nothing(data: Path, undisturbed: Path, tmp_path: Path) -> None:
    settings = [setting for setting in (*SMALL, *STATE) if not setting.startswith("train.workers")]
    other = gpaco.train(data, out=tmp_path / "run", settings=settings, workers=2, **QUICK)
    assert checkpoint_files(other.folder) == checkpoint_files(undisturbed)


@pytest.fixture(scope="module")
def two(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    run(*words(data, folder, *SHORT), ranks=2)
    return folder


@pytest.mark.process
def test_two_processes_train_and_evaluate_each_scene_once_and_print_once(two: Path) -> None:
    metrics = json.loads((two / "metrics.json").read_text())
    assert metrics["environment"]["processes"] == 2
    alone = gpaco.evaluate(two)
    assert metrics["confusion"] == alone["confusion"]
    assert metrics["boundary_iou"] == alone["boundary_iou"]
    both = run("evaluate", two, "--json", ranks=2)
    assert json.loads(both) == json.loads(json.dumps(alone))


@pytest.mark.slow
def test_a_run_goes_on_without_the_file_of_its_first_weights(data: Path, tmp_path: Path) -> None:
    weights = tmp_path / "encoder.safetensors"
    encoder = build(MODEL, 3, dim=16, channels=16).encoder
    save_file({key.removeprefix("model."): value for key, value in encoder.state_dict().items()}, weights)
    options = QUICK | {"epochs": 2, "weights": str(weights), "settings": [*SMALL, *STATE]}
    whole = gpaco.train(data, out=tmp_path / "whole", **options)

    with pytest.raises(KeyboardInterrupt):
        gpaco.train(data, out=tmp_path / "run", show=halt(1, 3), **options)
    weights.unlink()
    gpaco.train(data, out=tmp_path / "run", **options)
    assert_same_run(tmp_path / "run", whole.folder)


@pytest.mark.slow
def test_a_dry_run_trains_evaluates_resumes_and_leaves_nothing(data: Path) -> None:
    said: list[str] = []
    before = tree_hash(data)
    dry_run(data, settings=SMALL, **QUICK | {"say": said.append})
    assert said[-1].startswith("everything works")
    assert "step 2: trained, evaluated and saved after resuming" in said
    assert tree_hash(data) == before


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ce", "gpaco"])
@pytest.mark.parametrize(
    "settings",
    [
        ["train.amp=bf16", "train.accumulate=2"],
        ["optimizer.name=adamw", "optimizer.lr=0.001", "segmentation.aux_weight=0", "segmentation.pixels=-1"],
    ],
    ids=lambda settings: settings[0],
)
def test_options_of_the_loop_and_of_the_loss_work(settings: list[str], method: str, data: Path, tmp_path: Path) -> None:
    options = QUICK | {"epochs": 1, "method": method}
    of_pixels = ["segmentation.weight=0.5"] if method == "gpaco" else []
    result = gpaco.train(data, out=tmp_path / "run", settings=[*SMALL, *settings, *of_pixels], **options)
    assert result.metrics["method"] == method
    assert result.history[0]["loss"] < 100


def test_without_parts_some_scenes_are_held_back_and_every_guess_is_said(tmp_path: Path) -> None:
    folder = scene_folder(tmp_path / "data", train=10, val=0, test=0)
    for kind in ("images", "masks"):
        (folder / kind / "train").rename(folder / kind / "all")
    said: list[str] = []
    options = QUICK | {"epochs": 1, "say": said.append}
    result = gpaco.train(folder, out=tmp_path / "run", settings=SMALL, **options)
    for line in (
        "test: 2 of 10 training images held back, seed 0",
        "val: 1 of 8 training images held back, seed 0",
        "settings for this data (--set KEY=VALUE changes one):",
    ):
        assert line in said
    assert any("train.batch_size = 4" in line for line in said)
    after = said[said.index("settings as released (--set KEY=VALUE changes one):") + 1]
    assert after.startswith("  optimizer.name = sgd, optimizer.lr = 0.01")
    assert result.metrics["evaluated_on"] == "test"
    assert result.recipe.method.temperature == 0.07


def test_bad_pairs_stop_before_the_first_step_or_are_left_out(tmp_path: Path) -> None:
    folder = scene_folder(tmp_path / "data")
    (folder / "masks" / "test" / "1.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"test/1.png': the file is empty"):
        gpaco.train(folder, out=tmp_path / "run", settings=SMALL, **QUICK)
    assert not (tmp_path / "run" / "checkpoints").exists()
    said: list[str] = []
    options = QUICK | {"epochs": 1, "say": said.append, "on_bad_image": "skip"}
    result = gpaco.train(folder, out=tmp_path / "run", settings=SMALL, **options)
    assert any(line.startswith("left out:") and "test/1.png" in line for line in said)
    assert result.metrics["pixels"] == 2 * (40 * 56 - 6)
    assert "test/1.png" in (tmp_path / "run" / "bad_images.csv").read_text()
    (folder / "masks" / "test" / "2.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"2 pairs cannot be used, more than 1.0% of 14"):
        gpaco.train(folder, out=tmp_path / "other", settings=SMALL, **options)


@pytest.mark.slow
def test_settings_that_cannot_work_are_errors_with_a_remedy(data: Path, tmp_path: Path) -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"method": "paco"}, "segmentation has no method 'paco'"),
        ({"size": 32}, "model.size = 32 has no effect"),
        ({"batch_size": 1}, "batch norm needs two images at a time, and a batch of 1"),
        ({"model": "unet-test_resnet", "settings": ["segmentation.crop=[40,40]"]}, "multiples of 32, got [40, 40]"),
        ({"model": "unet-test_resnet"}, "the layers of unet differ in width, so segmentation.channels = 16"),
        ({"model": "fpn-test_resnet"}, "fpn normalizes 32 groups of channels"),
        ({"settings": ["segmentation.crop=[40]"]}, "segmentation.crop must have two numbers"),
        ({"settings": ["data.expect_images=20210"]}, "expects 20,210 training images, got 40"),
        ({"settings": ["segmentation.stride=[8,8]"]}, "segmentation.stride needs segmentation.window"),
        ({"settings": ["segmentation.output_stride=9"]}, "segmentation.output_stride must be one of 8, 16, got 9"),
    ]
    for options, message in changes:
        settings = [*SMALL, *options.pop("settings", [])]
        with pytest.raises(UserError) as caught:
            gpaco.train(data, out=tmp_path / "run", settings=settings, **QUICK | options)
        assert message in caught.value.cause
        assert caught.value.remedy


@pytest.mark.slow
def test_windows_output_stride_and_averaged_weights_of_a_recipe_are_those_of_the_loaded_run(
    data: Path, tmp_path: Path
) -> None:
    changes = ("segmentation.window=[32,32]", "segmentation.stride=[16,16]", "segmentation.output_stride=16")
    options = QUICK | {"epochs": 1, "settings": [*SMALL, *changes, "train.ema=0.5"]}
    trained = gpaco.train(data, out=tmp_path / "run", **options)
    predictor = load_segmenter(trained)
    network = predictor.model
    assert 64 // network.encoder(torch.zeros(1, 3, 64, 64))[-1].shape[2] == 16
    averaged = checkpoint.load(trained.folder / "checkpoints").tensors["ema"]
    assert all(torch.equal(value, averaged[key]) for key, value in network.state_dict().items())
    image, _ = scene(1)
    own, asked, whole = (
        segment(predictor, image, **how)[1].tolist()
        for how in ({}, {"window": (32, 32), "stride": (16, 16)}, {"window": (64, 64), "stride": (64, 64)})
    )
    assert own == asked != whole


@pytest.mark.slow
def test_a_stage_goes_on_with_the_network_of_the_one_before_and_cannot_change_its_shape(
    data: Path, tmp_path: Path
) -> None:
    stages = '[[stage]]\nname = "first"\nmethod.name = "ce"\n[[stage]]\nname = "second"\noptimizer.lr = 1e-9\n'
    (tmp_path / "recipe.toml").write_text(stages)
    options = QUICK | {"epochs": 1, "settings": SMALL, "recipe": tmp_path / "recipe.toml"}
    trained = gpaco.train(data, out=tmp_path / "run", **options)
    first, second = (
        checkpoint.load(folder / "checkpoints").tensors["model"]
        for folder in (trained.folder / "stage-1-first", trained.folder)
    )
    torch.testing.assert_close(second["classifier.1.weight"], first["classifier.1.weight"])
    assert "projector.0.weight" in second
    assert "projector.0.weight" not in first
    settings = [*SMALL, "stage.second.segmentation.channels=32"]
    with pytest.raises(UserError, match=r"has a different shape in stage 'second' than in the previous stage"):
        gpaco.train(data, out=tmp_path / "other", **options | {"settings": settings})
