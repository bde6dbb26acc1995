"""What loading a model reads: the parts that it uses, once; and never an older model without a word."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import gpaco
from gpaco.api.train import train
from gpaco.errors import UserError
from gpaco.recipes.recipe import dumps, override
from gpaco.recipes.settings import Recipe
from gpaco.training import checkpoint
from gpaco.training.run import Run, unfinished


def train_digits(folder: Path, **more: Any) -> Run:
    settings = ["train.report=false", "train.ema=0.9", "data.validation=0"]
    return train(
        "digits", out=folder, long_tail=20, batch_size=64, method="ce", settings=settings, say=lambda line: None, **more
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_digits(tmp_path_factory.mktemp("trained") / "run", epochs=3).folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    shutil.copytree(trained, tmp_path / "run")
    return Run(tmp_path / "run")


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_parts_that_a_model_does_not_need_may_be_damaged_or_deleted(run: Run) -> None:
    top1 = run.metrics["top1"]
    newest, *older = checkpoint.find(run.folder / "checkpoints")
    spoil(newest / "optimizer.safetensors")
    spoil(newest / "model.safetensors")  # the averaged weights are used
    assert gpaco.evaluate(run, say=lambda line: None)["top1"] == top1
    for path in (newest, *older):
        (path / "optimizer.safetensors").unlink()
    assert gpaco.evaluate(run, say=lambda line: None)["top1"] == top1


@pytest.mark.parametrize("name", ["ema.safetensors", "extra.safetensors", "state.json"])
def test_a_damaged_model_is_an_error_not_an_older_model(name: str, run: Run) -> None:
    newest, before, *_ = checkpoint.find(run.folder / "checkpoints")
    spoil(newest / name)
    with pytest.raises(UserError, match=f"{newest.name} is damaged") as error:
        gpaco.load(run)
    assert "delete that folder to use" in error.value.remedy
    shutil.rmtree(newest)
    assert f"step-{gpaco.load(run).card.step:08d}" == before.name


def test_a_damaged_checkpoint_that_training_has_passed_by_does_not_matter(run: Run) -> None:
    newest, *_ = checkpoint.find(run.folder / "checkpoints")
    later = newest.with_name("step-00009999")
    shutil.copytree(newest, later)
    spoil(later / "state.json")
    assert gpaco.load(run).card.step == int(newest.name.removeprefix("step-"))
    assert unfinished(run) == ""


def test_loading_reads_only_the_weights_in_use_and_each_file_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[str] = Counter()
    for name in ("_sha256", "load_file"):
        real = getattr(checkpoint, name)
        monkeypatch.setattr(
            checkpoint, name, lambda path, real=real, name=name: read.update([f"{name} {path.name}"]) or real(path)
        )
    gpaco.load(run)
    tensors = {what: count for what, count in read.items() if what.endswith(".safetensors")}
    files = ("ema.safetensors", "extra.safetensors")
    assert tensors == {f"{how} {file}": 1 for how in ("_sha256", "load_file") for file in files}


def test_a_resumed_run_takes_no_more_threads_than_it_began_with_says_so_and_puts_them_back(run: Run) -> None:
    before = torch.get_num_threads()
    found = checkpoint.load(run.folder / "checkpoints")
    for began, now, note in (
        (1, 3, "threads: 1, as when the run started; 3 are available"),
        (64, 2, "results may differ slightly: threads was 64, is 2"),
    ):
        found.state["environment"]["threads"] = began
        checkpoint.save(run.folder / "checkpoints", found.step, found.tensors, found.state)
        (run.folder / "metrics.json").unlink()
        notes: list[tuple[str, int]] = []
        try:
            torch.set_num_threads(now)
            train_digits(
                run.folder, epochs=3, show=lambda row, to=notes: to.append((row["note"], torch.get_num_threads()))
            )
            assert notes == [(note, min(began, now))]
            assert torch.get_num_threads() == now
        finally:
            torch.set_num_threads(before)


def test_runs_of_different_tasks_are_not_taken_together(run: Run, tmp_path: Path) -> None:
    (tmp_path / "scenes").mkdir()
    recipe = override(Recipe(), ["train.task=segmentation"])
    (tmp_path / "scenes" / "recipe.toml").write_text(dumps(recipe))
    both = [run.folder, tmp_path / "scenes"]
    for use in (
        lambda: gpaco.evaluate(both),
        lambda: gpaco.predict(both, tmp_path),
        lambda: gpaco.export(both, tmp_path / "both.onnx"),
        lambda: gpaco.report(both, tmp_path / "both.html"),
    ):
        with pytest.raises(UserError, match="these runs have different tasks"):
            use()
