"""Training as a user does it: resume after kills, signals, several processes, what diverges, what is memorized."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from helpers.commands import assert_same_run, checkpoint_files, fails, history, run, start
from helpers.trained import terminate
from torch import nn

import gpaco
from gpaco.api.train import train
from gpaco.errors import Diverged, UserError
from gpaco.methods import ANALYZED
from gpaco.recipes.recipe import dumps, override
from gpaco.recipes.request import requested
from gpaco.recipes.settings import Recipe
from gpaco.system.signals import Stopped, catch_signals
from gpaco.tasks.classification.learner import ClassificationLearner
from gpaco.training import checkpoint, loop
from gpaco.training.loop import step_seed
from gpaco.training.schedule import make_optimizer
from gpaco.training.stages import check_same_run

QUICK = ("digits", "--long-tail", 20, "--epochs", 6, "--batch-size", 32)
QUICK = (*QUICK, "--set", "train.report=false")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run."""
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    run("train", *QUICK, "--method", "gpaco", "--out", folder)
    return folder


@pytest.mark.process
def test_a_finished_run_given_again_changes_nothing_and_exits_0(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(undisturbed, folder)
    out = run("train", *QUICK, "--method", "gpaco", "--out", folder)
    assert "is already finished" in out
    assert_same_run(folder, undisturbed)


@pytest.mark.process
def test_a_page_that_a_kill_prevented_is_written_by_the_same_command(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(undisturbed, folder)
    (folder / ".report.html.writing").write_text("half of a page")
    run("train", *QUICK[:-2], "--method", "gpaco", "--out", folder)
    assert "</html>" in (folder / "report.html").read_text()
    assert not (folder / ".report.html.writing").exists()


@pytest.mark.process
def test_two_processes_train_and_evaluate_each_image_once(tmp_path: Path) -> None:
    folder = tmp_path / "two"
    words = (*QUICK, "--set", "method.contrast=global", "--set", "train.epochs=2", "--tune-prior")
    words = (*words, "--set", "train.report=true")
    run("train", *words, "--out", folder, ranks=2)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["environment"]["processes"] == 2
    stored = np.load(folder / "predictions.npz")
    alone = gpaco.evaluate(folder)
    assert metrics["n"] == len(stored["labels"]) == alone["n"]
    assert metrics["tuned"] == alone["tuned"]
    assert metrics["top1"] == pytest.approx(alone["top1"], abs=1 / metrics["n"])
    assert json.loads((folder / "analysis.json").read_text())["gradients"]["images"] == sum(metrics["counts"])
    out = tmp_path / "figures.json"
    printed = json.loads(run("evaluate", folder, "--tune-prior", "--out", out, "--json", ranks=2))  # once
    assert {"written_by": "gpaco evaluate"} | printed == json.loads(out.read_text())
    assert (printed["n"], printed["tuned"]) == (alone["n"], alone["tuned"])
    assert printed["top1"] == pytest.approx(alone["top1"], abs=1 / metrics["n"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ANALYZED)
def test_every_method_memorizes_32_images(method: str, tmp_path: Path) -> None:
    folder = tmp_path / "images" / "train"
    digits = gpaco_digits()
    for k, (image, label) in enumerate(digits):
        home = folder / str(label)
        home.mkdir(parents=True, exist_ok=True)
        write_png(home / f"{k}.png", image)
    shutil.copytree(folder, folder.parent / "test")
    result = train(
        folder.parent,
        out=tmp_path / "run",
        method=method,
        epochs=30 if method != "supcon" else 60,
        batch_size=16,
        lr=0.05,
        validation=0,
        report=False,
        settings=["data.allow_leakage=true", "schedule.warmup=2"],
        say=lambda line: None,
    )
    assert result.metrics["top1"] == 1.0


def gpaco_digits() -> list[tuple[np.ndarray, int]]:
    from gpaco.data.readers.read import read

    samples = read("digits").train
    chosen = [i for c in range(4) for i in np.flatnonzero(samples.labels == c)[:8]]
    return [(samples.load(i), int(samples.labels[i])) for i in chosen]


def write_png(path: Path, image: np.ndarray) -> None:
    import cv2

    cv2.imwrite(str(path), image[:, :, ::-1])


@pytest.mark.process
def test_a_run_that_diverges_exits_4(tmp_path: Path) -> None:
    words = ("train", "digits", "--method", "ce", "--out", tmp_path / "run", "--epochs", 3, "--batch-size", 256)
    message = fails(*words, "--lr", 1e30, "--set", "schedule.warmup=0", code=4)
    assert "not finite" in message
    assert "lower the learning rate" in message


class Toy(NamedTuple):
    """A batch of numbers."""

    x: torch.Tensor

    def __len__(self) -> int:
        return len(self.x)

    def chunks(self, parts: int) -> list["Toy"]:
        return [self]

    def to(self, device: torch.device) -> "Toy":
        return self


@dataclass(frozen=True)
class Named:
    """A card with classes."""

    classes: tuple[str, ...] = ()


def fit(learner: Any, recipe: Recipe, *rest: Any) -> loop.Position:
    learner.recipe = recipe
    return loop.fit(learner, *rest)


@dataclass
class ToyLearner:
    """A line through numbers; in some steps its loss is finite and the gradient is not."""

    bad_steps: range
    steps: int = 5
    evaluate: Callable[[nn.Module], dict[str, Any]] = lambda model: {}
    card: Named = Named()

    def __post_init__(self) -> None:
        self.model, self.extra, self.numbers = nn.Linear(1, 1), nn.Identity(), iter(range(100))

    def batches(self, epoch: int, start: int) -> Iterator[Toy]:
        return (Toy(torch.full((4, 1), 1.0 + epoch + step)) for step in range(start, self.steps))

    def start(self, batch: Toy) -> float:
        return 0.0

    def loss(self, network: nn.Module, batch: Toy) -> torch.Tensor:
        self.low = torch.is_autocast_enabled("cpu")
        wrong = (0 * self.model.weight.sum()).sqrt() if next(self.numbers) in self.bad_steps else 0  # slope at 0
        return (network(batch.x) ** 2).mean() + wrong

    def after_step(self) -> None:
        pass

    def validate(self, network: nn.Module) -> dict[str, Any]:
        return self.evaluate(network)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "moment"), [*((3, moment) for moment in range(9)), *((1, moment) for moment in range(3)), (3, "judging")]
)
def test_a_signal_in_any_step_and_in_the_last_evaluation_saves_and_the_run_goes_on_exactly(
    steps: int, moment: int | str, tmp_path: Path
) -> None:
    recipe = override(Recipe(), ["train.epochs=3", "optimizer.lr=0.01", "schedule.warmup=1"])
    shown, judged = [0], [0]

    def interrupt(now: bool) -> None:
        if now:
            os.kill(os.getpid(), signal.SIGTERM)

    def show(row: dict[str, Any]) -> None:
        if "step" in row:
            interrupt(shown[0] == moment)
            shown[0] += 1

    def evaluate(model: nn.Module) -> dict[str, Any]:
        judged[0] += 1
        interrupt(moment == "judging" and judged[0] == 3)
        return {"score": 1.0 - judged[0]}

    def task(**more: Any) -> ToyLearner:
        torch.manual_seed(0)
        return ToyLearner(range(0), steps, **more)

    for name in ("undisturbed", "stopped"):
        (tmp_path / name).mkdir()
    fit(task(evaluate=lambda model: {"score": 0.0}), recipe, tmp_path / "undisturbed", torch.device("cpu"))
    with pytest.raises(Stopped):
        fit(task(evaluate=evaluate), recipe, tmp_path / "stopped", torch.device("cpu"), show)
    fit(task(evaluate=evaluate), recipe, tmp_path / "stopped", torch.device("cpu"))
    assert checkpoint_files(tmp_path / "stopped") == checkpoint_files(tmp_path / "undisturbed")
    rows = [[{**row, "score": 0} for row in history(tmp_path / name)] for name in ("undisturbed", "stopped")]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 3


@pytest.mark.parametrize("clip", [0, 1])
def test_a_gradient_that_is_not_finite_is_left_out_although_the_loss_is(clip: float, tmp_path: Path) -> None:
    recipe = override(Recipe(), ["train.epochs=4", "schedule.warmup=0", f"optimizer.clip={clip}"])
    for name in ("some", "many"):
        (tmp_path / name).mkdir()
    task = ToyLearner(range(3, 7))
    fit(task, recipe, tmp_path / "some", torch.device("cpu"))
    assert all(parameter.isfinite().all() for parameter in task.model.parameters())
    with pytest.raises(Diverged, match="5 consecutive steps"):
        fit(ToyLearner(range(6, 50)), recipe, tmp_path / "many", torch.device("cpu"))
    kept = checkpoint.load(tmp_path / "many" / "checkpoints").tensors
    assert all(tensor.isfinite().all() for part in kept.values() for tensor in part.values())


class WithKeys(ToyLearner):
    """Its second network, without a gradient, has batch norm too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.extra, self.steps_so_far = nn.BatchNorm1d(1), iter(range(100))

    def loss(self, network: nn.Module, batch: Toy) -> torch.Tensor:
        with torch.no_grad():
            self.extra(batch.x * (float("inf") if next(self.steps_so_far) in self.bad_steps else 1.0))
        return super().loss(network, batch)


def test_a_step_that_is_left_out_leaves_the_batch_norm_of_keys_as_it_was() -> None:
    recipe = override(Recipe(), ["train.epochs=2", "schedule.warmup=0"])
    learner = WithKeys(range(3, 5))
    fit(learner, recipe, None, torch.device("cpu"))
    assert all(buffer.isfinite().all() for buffer in learner.extra.buffers())
    assert learner.extra.num_batches_tracked == 8


def test_a_signal_after_the_last_look_is_not_lost() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with catch_signals() as caught:
            os.kill(os.getpid(), signal.SIGTERM)
            assert not received
        assert caught.number == signal.SIGTERM
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.process
def test_sigusr1_ends_a_command_as_sigterm_does() -> None:
    code = "import os, signal, time; from gpaco.system.signals import end_with_first_signal as begin; begin(); "
    code += "signal.signal(signal.SIGTERM, signal.SIG_DFL); "  # other tests may have left it ignored
    code += "os.kill(os.getpid(), signal.SIGUSR1); time.sleep(30)"  # the signal may come a moment later
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGTERM


def test_with_float16_gradients_that_are_never_finite_end_the_run_and_a_few_do_not(tmp_path: Path) -> None:
    settings = ["train.epochs=8", "schedule.warmup=0", "train.amp=fp16", "optimizer.lr=1e-4"]
    recipe = override(Recipe(), settings)
    for name in ("some", "many"):
        (tmp_path / name).mkdir()
    fit(ToyLearner(range(3, 12)), recipe, tmp_path / "some", torch.device("cpu"))
    with pytest.raises(Diverged, match="5 consecutive steps"):
        fit(ToyLearner(range(3, 100)), recipe, tmp_path / "many", torch.device("cpu"))


def test_the_loss_of_an_epoch_is_the_mean_over_its_good_steps(tmp_path: Path) -> None:
    recipe = override(Recipe(), ["train.epochs=1", "schedule.warmup=0", "optimizer.lr=1e-9"])
    task = ToyLearner(range(2, 4))
    fit(task, recipe, tmp_path, torch.device("cpu"))
    (row,) = history(tmp_path)
    weight, bias = (parameter.item() for parameter in task.model.parameters())
    assert row["loss"] == pytest.approx(np.mean([(weight * x + bias) ** 2 for x in (1, 2, 5)]), rel=1e-5)


def test_without_a_folder_the_model_ends_as_the_average(tmp_path: Path) -> None:
    recipe = override(Recipe(), ["train.epochs=2", "train.ema=0.9", "optimizer.lr=0.01"])
    learners = []
    for folder in (tmp_path, None):
        torch.manual_seed(0)
        learners.append(ToyLearner(range(0)))
        fit(learners[-1], recipe, folder, torch.device("cpu"))
    saved = checkpoint.load(tmp_path / "checkpoints").tensors
    assert torch.equal(learners[1].model.weight, saved["ema"]["weight"])
    assert not torch.equal(saved["model"]["weight"], saved["ema"]["weight"])


def test_without_a_folder_nothing_is_saved_and_nothing_else_is_said() -> None:
    def show(row: dict[str, Any]) -> None:
        if "step" not in row:  # after an epoch
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match=r"^stopped by SIGTERM$"):
        fit(ToyLearner(range(0)), override(Recipe(), ["train.epochs=2"]), None, torch.device("cpu"), show)


def test_the_start_sees_what_the_first_loss_sees_and_the_average_begins_after_it(tmp_path: Path) -> None:
    class Started(ToyLearner):
        def start(self, batch: Toy) -> float:
            nn.init.constant_(self.model.bias, 100.0)
            return float(len(batch))

    class Halves(Toy):
        def chunks(self, parts: int) -> list[Toy]:
            return [Toy(part) for part in self.x.chunk(parts)]

    recipe = override(Recipe(), ["train.epochs=1", "train.ema=0.999", "train.accumulate=2", "optimizer.lr=1e-9"])
    learner = Started(range(0))
    learner.batches = lambda epoch, start: iter([Halves(torch.ones(4, 1))] * 5)  # type: ignore[method-assign]
    assert fit(learner, recipe, tmp_path, torch.device("cpu")).shift == 2
    assert checkpoint.load(tmp_path / "checkpoints").tensors["ema"]["bias"].item() == pytest.approx(100)


class Parts(Toy):
    """A batch that can be split."""

    def chunks(self, parts: int) -> list[Toy]:
        return [Toy(part) for part in self.x.chunk(parts)]


def test_options_of_the_loop_do_what_they_say(tmp_path: Path) -> None:
    def trained(*settings: str, epochs: int = 1, folder: Path | None = None) -> ToyLearner:
        torch.manual_seed(0)
        learner = ToyLearner(range(0))
        learner.model = nn.Conv2d(1, 1, 1)
        rows = torch.arange(1.0, 6).view(5, 1, 1, 1)
        learner.batches = lambda epoch, start: iter([Parts(rows)] * 5)  # type: ignore[method-assign]
        given = [f"train.epochs={epochs}", "schedule.warmup=0", "optimizer.lr=0.01", "optimizer.weight_decay=0"]
        fit(learner, override(Recipe(), [*given, *settings]), folder, torch.device("cpu"))
        return learner

    usual = trained()
    torch.testing.assert_close(trained("train.accumulate=2").model.weight, usual.model.weight)  # parts of 3 and 2 rows
    still = trained("optimizer.lr=0").model.weight
    clipped = trained("optimizer.clip=0.001", "optimizer.momentum=0").model.weight
    assert 0 < (clipped - still).norm() <= 5 * 0.01 * 0.001 * 1.01
    assert not usual.low
    assert trained("train.amp=bf16").low
    trained("train.checkpoint_every=2", "train.keep=9", epochs=5, folder=tmp_path)
    assert [path.name for path in checkpoint.find(tmp_path / "checkpoints")] == [f"step-{n:08d}" for n in (25, 20, 10)]


def test_the_optimizer_has_the_settings_of_the_recipe() -> None:
    model = nn.Linear(2, 2)
    model.bias.rate, model.bias.weight_decay = 0.1, 0.0  # type: ignore[assignment]
    adamw = make_optimizer(override(Recipe(), ["optimizer.name=adamw", "optimizer.betas=[0.8,0.95]"]), model)
    assert adamw.defaults["betas"] == (0.8, 0.95)
    settings = ["optimizer.nesterov=true", "optimizer.momentum=0.7", "optimizer.lr=0.5", "optimizer.weight_decay=0.01"]
    sgd = make_optimizer(override(Recipe(), settings), model)
    assert (sgd.defaults["nesterov"], sgd.defaults["momentum"]) == (True, 0.7)
    found = {round(group["lr"], 9): group["weight_decay"] for group in sgd.param_groups}
    assert found == {0.5: 0.01, 0.05: 0.0}


def test_a_run_does_not_go_on_with_other_classes(tmp_path: Path) -> None:
    def goes_on(epochs: int, classes: list[str]) -> int:
        task = ToyLearner(range(0), card=Named(tuple(classes)))
        recipe = override(Recipe(), [f"train.epochs={epochs}", "schedule.warmup=0"])
        return fit(task, recipe, tmp_path, torch.device("cpu")).epoch

    assert goes_on(1, ["a"]) == 1
    assert goes_on(2, ["a"]) == 2
    with pytest.raises(UserError, match="has changed since it started: different classes"):
        goes_on(3, ["b"])


def test_a_checkpoint_that_a_kill_left_without_its_name_is_the_latest_after_resuming(tmp_path: Path) -> None:
    recipe = override(Recipe(), ["train.epochs=2", "schedule.warmup=0"])
    latest = tmp_path / "checkpoints" / "latest"
    for _ in range(2):
        fit(ToyLearner(range(0)), recipe, tmp_path, torch.device("cpu"))
        assert latest.read_text() == "step-00000010\n"
        latest.write_text("step-00000005\n")


def test_the_row_of_an_epoch_whose_first_checkpoint_a_kill_prevented_is_not_kept_twice(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1, "loss": 1.0}\n')
    fit(
        ToyLearner(range(0)), override(Recipe(), ["train.epochs=2", "schedule.warmup=0"]), tmp_path, torch.device("cpu")
    )
    assert [row["epoch"] for row in history(tmp_path)] == [1, 2]


def test_another_run_is_named_by_a_setting_that_can_be_typed(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(dumps(override(Recipe(), ["train.epochs=8", "schedule.warmup=1"])))
    with pytest.raises(UserError) as error:
        check_same_run(tmp_path, Recipe())
    assert error.value.cause.endswith("train.epochs was 8, now 30, and 1 more setting")


def test_a_run_resumes_from_another_folder_and_after_it_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.safetensors").touch()
    settings = {"data.path": tmp_path / "data", "model.weights": tmp_path / "b.safetensors", "train.features": "here"}
    stored = override(Recipe(), [f"{key}={value}" for key, value in settings.items()])
    stored = replace(stored, source=replace(stored.source, note="an older one"))
    (tmp_path / "recipe.toml").write_text(dumps(stored))
    monkeypatch.chdir(tmp_path / "sub")
    recipe, _ = requested("../data", None, ["train.features=there"], {"weights": "../b.safetensors"})
    check_same_run(tmp_path, recipe)


@pytest.mark.process
def test_a_folder_with_another_run_or_with_foreign_files_is_refused(undisturbed: Path, tmp_path: Path) -> None:
    message = fails("train", *QUICK, "--seed", 5, "--out", undisturbed)
    assert "holds another run: train.seed was 0, now 5" in message
    run = shutil.copytree(undisturbed, tmp_path / "without-checkpoints", ignore=shutil.ignore_patterns("checkpoints"))
    assert fails("train", *QUICK, "--seed", 5, "--out", run) == message.replace(str(undisturbed), str(run))
    (tmp_path / "notes.txt").write_text("mine")
    assert "is not empty and was not written by this command" in fails("train", *QUICK, "--out", tmp_path)
    mine = tmp_path / "mine" / "recipe.toml"
    mine.parent.mkdir()
    mine.write_text("# my notes\n[method]\nname = 'ce'\n")
    message = fails("train", "digits", "--recipe", mine, "--out", mine.parent)
    assert "has a recipe.toml that `gpaco train` did not write" in message
    assert mine.read_text().startswith("# my notes")


@pytest.mark.process
def test_two_runs_on_one_folder_are_one_too_many(tmp_path: Path) -> None:
    first = start("train", *QUICK, "--set", "train.epochs=60", "--out", tmp_path / "run")
    while not (tmp_path / "run" / "recipe.toml").exists() and first.poll() is None:
        time.sleep(0.01)
    try:
        message = fails("train", *QUICK, "--set", "train.epochs=60", "--out", tmp_path / "run")
        assert str(first.pid) in message
    finally:
        first.kill()
        first.communicate()


@pytest.mark.extensive
@pytest.mark.slow
def test_a_compiled_model_trains_in_parts_as_the_plain_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Compiled to the same operations: making machine code of them would take a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    settings = ["method.memory=64", "train.accumulate=2"]
    common = {"long_tail": 20, "batch_size": 64, "epochs": 1, "say": lambda line: None}
    plain = train("digits", out=tmp_path / "plain", settings=settings, **common)
    compiled = train("digits", out=tmp_path / "compiled", settings=[*settings, "train.compile=true"], **common)
    assert checkpoint_files(plain.folder) == checkpoint_files(compiled.folder)


def test_the_seed_of_a_step_depends_on_every_key() -> None:
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert len({step_seed(*key) for key in keys}) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ["train.ema=0.9"],
        ["train.accumulate=3"],
        ["train.amp=bf16"],
        ["model.ghost_batch=8"],
        ["optimizer.name=adamw", "optimizer.lr=0.001", "optimizer.clip=1"],
        ["method.mixup=0.2", "method.cutmix=1.0"],
        ["train.part=head", "model.name=resnet8"],
    ],
    ids=lambda settings: settings[0],
)
def test_options_of_the_loop_work_and_resume(settings: list[str], tmp_path: Path) -> None:
    settings = ["method.memory=64", *settings]
    common = {"long_tail": 50, "batch_size": 64, "epochs": 2, "report": False, "settings": settings}

    one = train("digits", out=tmp_path / "one", say=lambda line: None, **common)
    with pytest.raises(Stopped):
        train("digits", out=tmp_path / "two", say=lambda line: None, show=terminate(1), **common)
    two = train("digits", out=tmp_path / "two", say=lambda line: None, **common)
    assert checkpoint_files(one.folder) == checkpoint_files(two.folder)
    assert history(one.folder) == history(two.folder)
    assert len(one.history) == 2
    assert torch.isfinite(torch.tensor([row["loss"] for row in one.history])).all()


def test_the_next_stage_starts_from_the_best_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = iter(range(100))
    monkeypatch.setattr(ClassificationLearner, "validate", lambda *_: {"score": -float(next(judged))})
    stages = '[[stage]]\nname = "first"\n[[stage]]\nname = "second"\noptimizer.lr = 1e-12\n'
    (tmp_path / "recipe.toml").write_text(stages)
    common = {"long_tail": 20, "batch_size": 64, "epochs": 2, "method": "ce", "say": lambda line: None}
    result = train("digits", out=tmp_path / "run", recipe=tmp_path / "recipe.toml", **common)
    last, best = checkpoint.find(result.folder / "stage-1-first" / "checkpoints")
    name = "backbone.conv1.weight"
    second, last, best = (
        checkpoint.load(path).tensors["model"][name] for path in (result.folder / "checkpoints", last, best)
    )
    torch.testing.assert_close(second, best)
    assert not torch.allclose(second, last)


def test_the_next_stage_starts_from_the_averaged_weights_if_there_are_some(tmp_path: Path) -> None:
    stages = '[[stage]]\nname = "first"\ntrain.ema = 0.9\n[[stage]]\nname = "second"\noptimizer.lr = 1e-12\n'
    (tmp_path / "recipe.toml").write_text(stages)
    common = {"long_tail": 20, "batch_size": 64, "epochs": 1, "method": "ce", "say": lambda line: None}
    result = train("digits", out=tmp_path / "run", recipe=tmp_path / "recipe.toml", **common)
    first = checkpoint.load(result.folder / "stage-1-first" / "checkpoints").tensors
    second = checkpoint.load(result.folder / "checkpoints").tensors["model"]
    name = "backbone.conv1.weight"
    torch.testing.assert_close(second[name], first["ema"][name])
    assert not torch.allclose(first["model"][name], first["ema"][name])
