"""The command as a new user meets it: help, messages, JSON, and one command from a folder of images to a model."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import ENVIRONMENT, run, start
from helpers.images import class_folders, photographs, save, tree_hash
from typer.main import get_command

import gpaco
from gpaco.cli.commands import app
from gpaco.cli.console import print_metrics
from gpaco.errors import UserError
from gpaco.metrics.classification import summarize
from gpaco.recipes import recipe as recipes
from gpaco.recipes.paper_rows import names
from gpaco.recipes.settings import MethodSettings
from gpaco.training import checkpoint
from gpaco.training.run import Run

COMMANDS = tuple(get_command(app).commands)  # type: ignore[attr-defined]
QUICK = ("--long-tail", "20", "--epochs", "2", "--batch-size", "64", "--lr", "0.05")

Command = Callable[..., str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "gpaco"
    quick = {"long_tail": 20, "epochs": 2, "batch_size": 64, "lr": 0.05, "say": lambda line: None}
    gpaco.train("digits", out=folder, settings=["method.memory=64"], **quick)
    return folder


@pytest.mark.slow
def test_results_go_to_a_folder_named_after_the_data_by_default(
    prints: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = class_folders(tmp_path / "animals", {"ant": 6, "bee": 6})
    prints("train", data, "--method", "ce", "--epochs", 1, "--set", "train.report=false")
    assert (tmp_path / "runs" / data.name / "metrics.json").is_file()


# Help


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, prints: Command) -> None:
    text = prints(command, "--help")
    assert text.startswith(f"Usage: gpaco {command}")
    assert prints(command, "-h") == text
    assert not re.search(r"list\[|[{}]|PosixPath", text), "types of Python mean nothing to most people"
    options = re.findall(r"^  (?:-h, )?--[a-z-]+", text, re.MULTILINE)
    assert 1 <= len(options) <= 27
    assert command in prints("--help")


def test_no_words_at_all_give_help_and_no_summary_is_cut_off(prints: Command) -> None:
    assert prints() == prints("--help")
    commands, steps = prints().split("Commands:")[1].split("First steps")
    assert "gpaco train photos/ --out runs/first\n" in steps
    assert "..." not in commands
    assert re.findall(r"^  (\w+)", commands, re.MULTILINE) == list(COMMANDS)
    summaries = re.split(r"^  \w+ +", commands, flags=re.MULTILINE)[1:]
    assert all(re.fullmatch(r"[^.]+\.", summary.strip()) for summary in summaries), "one sentence each"


@pytest.mark.process
def test_help_does_not_import_torch_or_rich() -> None:
    code = f"""
import sys
from gpaco.cli.main import main
for words in [["--help"], ["--version"], *([name, "--help"] for name in {COMMANDS})]:
    try:
        main(words)
    except SystemExit as left:
        assert left.code == 0
heavy = {{"torch", "numpy", "timm", "cv2", "sklearn", "PIL", "rich"}} & set(sys.modules)
assert not heavy, heavy
"""
    result = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_version_is_printed(prints: Command) -> None:
    assert prints("--version") == f"{gpaco.__version__}\n"
    assert "--version" in prints("--help")


@pytest.mark.parametrize("words", ["recipes [OPTIONS] [WORD]", "train [OPTIONS] DATA"])
def test_usage_has_brackets_around_what_may_be_left_out(words: str, prints: Command) -> None:
    assert prints(words.split()[0], "--help").startswith(f"Usage: gpaco {words}\n")


def test_the_help_of_check_names_the_one_setting_that_it_takes(prints: Command) -> None:
    text = prints("check", "--help")
    assert "data.allow_outside=true" in text
    assert "any setting" not in text


def test_every_option_that_a_message_names_exists(prints: Command) -> None:
    known = {option for command in COMMANDS for option in re.findall(r"--[a-z-]+", prints(command, "--help"))}
    named = {
        (path.name, option)
        for path in Path(gpaco.__file__).parent.rglob("*.py")
        for option in re.findall(r"(?<![-\w])--[a-z][a-z-]+", path.read_text())
    }
    others = {"--version", "--debug", "--nproc", "--create"}  # of gpaco itself, torchrun and tar
    assert not sorted((file, option) for file, option in named if option not in known | others)


# JSON and nothing else


@pytest.mark.process
def test_train_prints_json_and_nothing_else_on_standard_output(tmp_path: Path) -> None:
    figures = json.loads(run("train", "digits", *QUICK, "--method", "ce", "--out", tmp_path / "run", "--json"))
    assert figures == json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert {"top1", "many", "medium", "few", "macro", "macro_f1", "ece", "per_class", "counts", "seed"} <= set(figures)


@pytest.mark.slow
def test_every_other_command_prints_json_and_nothing_else(trained: Path, prints: Command, tmp_path: Path) -> None:
    image = save(tmp_path / "one.png")
    assert json.loads(prints("evaluate", trained, "--json"))["top1"] == Run(trained).metrics["top1"]
    rows = json.loads(prints("predict", trained, image, "--out", tmp_path / "rows.csv", "--json"))
    assert rows[0]["path"] == str(image)
    assert json.loads(prints("check", "digits", "--json"))["classes"] == 10
    listed = {row["name"]: row for row in json.loads(prints("recipes", "--json"))}
    assert set(listed) == set(names())
    assert listed["imagenet-lt-resnet50-gpaco"]["paper"] == "58.5"
    words = ("compare", "digits", "--methods", "ce", "--seeds", 1, "--epochs", 1, "--long-tail", 20)
    assert json.loads(prints(*words, "--out", tmp_path / "all", "--json"))["rows"][0]["method"] == "ce"
    words = ("train", "digits", *QUICK, "--out", tmp_path / "run", "--dry-run", "--json")
    needs = json.loads(prints(*words))
    assert needs["steps"] == 2 * (needs["images"] // 64)  # two epochs of the whole data
    assert 0 < needs["hours"] < 1
    assert 0.05 < needs["memory_gb"] < 100
    (row,) = json.loads(prints("latency", trained, "--json"))
    assert row["parameters"] > 70_000
    assert row == json.loads((trained / "latency.json").read_text())


# What the commands say


def test_figures_are_printed_with_the_size_of_their_group(trained: Path, prints: Command) -> None:
    text = prints("evaluate", trained)
    metrics = Run(trained).metrics
    assert f"all                {100 * metrics['top1']:5.1f}%" in text
    assert f"({metrics['groups']['few']} classes)" in text


def test_a_group_says_how_many_of_its_classes_were_tested(capsys: pytest.CaptureFixture[str]) -> None:
    print_metrics(summarize(np.eye(4)[[0, 1, 2]], np.array([0, 1, 2]), [200, 50, 5, 3], list("abcd")), as_json=False)
    text = capsys.readouterr().out
    assert "few                100.0%   (2 classes, 1 of them tested)" in text
    assert "many               100.0%   (1 class)" in text


def test_a_run_without_a_page_does_not_speak_of_one(prints: Command, tmp_path: Path) -> None:
    words = ("train", "digits", *QUICK, "--method", "ce", "--epochs", 1, "--out", tmp_path / "run")
    text = prints(*words, "--set", "train.report=false")
    assert f"Model: {tmp_path / 'run'}\n" in text
    assert "Report:" not in text


def test_predictions_without_a_name_replace_only_earlier_ones_and_few_of_them_are_printed(
    trained: Path, prints: Command, refuses: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    image = save(tmp_path / "one.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    (row,) = gpaco.predict(trained, image)
    assert json.loads(prints("predict", trained, image, "--json"))[0]["class"] == row["class"]
    assert not Path("predictions.csv").exists()
    (_, second), share = row["top"][:2], f"{100 * row['probability']:.0f}%"
    images = f"{row['group']}: {row['train']} training image{'s' * (row['train'] != 1)}"
    line = f"one.png: {row['class']} {share} ({images}); {second[0]} {100 * second[1]:.0f}%"
    assert prints("predict", trained, "one.png") == f"{line}\n1 image: predictions.csv\n"
    written = Path("predictions.csv").read_bytes()
    assert "no image could be read: cannot read image 'bad.png'" in refuses("predict", trained, "bad.png")
    assert Path("predictions.csv").read_bytes() == written, "a failed command loses nothing"
    for own in (b"my own table", written.replace(b",error\r\n", b",error,my notes\r\n")):
        Path("predictions.csv").write_bytes(own)
        refuses("predict", trained, "one.png")
        assert Path("predictions.csv").read_bytes() == own
    Path("predictions.csv").write_bytes(written)
    text = prints("predict", trained, "one.png", "bad.png")
    assert text.splitlines()[0] == line
    assert text.splitlines()[1].startswith("cannot read image 'bad.png': not a JPEG")
    assert text.splitlines()[2] == "2 files, 1 of them could not be read: predictions.csv"
    text = prints("predict", trained, *["one.png"] * 11, "--out", "more.csv")
    assert text == f"  {row['class']} 11\n11 images: more.csv\n", "many answers are counted by class"


def test_a_folder_of_runs_is_told_from_a_run(trained: Path, refuses: Command, tmp_path: Path) -> None:
    assert f"such as {trained}" in refuses("report", trained.parent)
    shutil.copytree(trained, tmp_path / "c1" / "ce" / "seed-0")
    assert f"such as {tmp_path / 'c1' / 'ce' / 'seed-0'}\n" in refuses("evaluate", tmp_path / "c1")


def test_a_run_that_has_not_come_to_its_end_is_used_and_that_is_said(
    trained: Path, prints: Command, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    recipe = (tmp_path / "run" / "recipe.toml").read_text()
    (tmp_path / "run" / "recipe.toml").write_text(recipe.replace("\nepochs = 2\n", "\nepochs = 5\n"))
    line = f"{tmp_path / 'run'} has not finished: 2 of 5 epochs are done"
    assert line in prints("evaluate", tmp_path / "run")
    words = ("predict", save(tmp_path / "one.png"), "--out", tmp_path / "rows.csv")
    assert line in prints(words[0], tmp_path / "run", *words[1:])
    assert "has not finished" not in prints(words[0], trained, *words[1:])


def test_show_prints_every_setting_with_a_word_on_it(
    trained: Path, prints: Command, refuses: Command, tmp_path: Path
) -> None:
    default = prints("show", "default")
    assert set(tomllib.loads(default)["method"]) == {field.name for field in fields(MethodSettings)}
    assert "margin of the rarest class" in prints("show", "ldam-drw")
    assert all("# " in line for line in default.splitlines() if "=" in line and not line.startswith("name"))
    assert recipes.diff(recipes.loads(prints("show", trained)), Run(trained).recipe) == {}
    assert 'ours = ""  # number we got; empty: not run by us' in prints("show", "imagenet-lt-resnet50-gpaco")
    assert "long_tail = 20.0" in prints("show", trained / "recipe.toml")
    tuned = tmp_path / "tuned"
    tuned.mkdir()
    shutil.copy(trained / "recipe.toml", tuned)
    (tuned / "tuning.json").write_text('{"chosen": {"optimizer.lr": 0.123}}')
    assert "lr = 0.123" in prints("show", tuned)
    name = "cifar100-lt100-resnet32-gpaco"
    assert prints("show", f"{name}-paper") == prints("show", name, "--paper")
    assert "ce is not a recipe" in refuses("show", "ce", "--paper")
    assert "method 'gpacoo'; did you mean 'gpaco'?" in refuses("show", "gpacoo")


def test_recipes_are_listed_with_the_papers_number_and_ours_and_may_be_chosen_by_a_word(prints: Command) -> None:
    text = prints("recipes")
    assert all(f"\n{name} " in text for name in names())
    assert max(map(len, text.splitlines())) <= 120
    (line,) = [line for line in text.splitlines() if line.startswith("imagenet-lt-resnet50-gpaco ")]
    assert line.split(None, 3)[1:] == ["58.5", "-", "Table 2, GPaCo, ResNet-50"]
    assert "A dash under ours: not run by us" in text
    some = prints("recipes", "imagenet-lt")
    assert "imagenet-lt-resnext101-paco" in some
    assert "places" not in some
    assert "imagenet-vit-b-multitask" in prints("recipes", "table 13")


# A dry run


def test_a_dry_run_leaves_nothing_behind(prints: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    for method, out in (("gpaco", ("--out", "run")), ("supcon", ())):
        text = prints("train", "digits", "--method", method, "--long-tail", 20, *out, "--dry-run")
        assert "after resuming" in text
    assert not list((tmp_path / "here").iterdir())
    assert not list((tmp_path / "temporary").iterdir())


# Stages and one's own images


@pytest.mark.slow
def test_supcon_trains_features_then_a_classifier(tmp_path: Path, prints: Command) -> None:
    said: list[str] = []
    quick = {"long_tail": 20, "epochs": 3, "batch_size": 64, "lr": 0.05, "say": said.append}
    result = gpaco.train("digits", out=tmp_path / "run", method="supcon", settings=["method.memory=64"], **quick)
    assert [line for line in said if line.startswith("stage ")] == [
        "stage 1 of 2: features",
        "stage 2 of 2: classifier",
    ]
    features = Run(tmp_path / "run" / "stage-1-features")
    assert features.recipe.method.name == "supcon"
    assert len(features.history) == 3
    assert not any(key.startswith("val_") or key == "score" for row in features.history for key in row)
    for ask in (lambda: gpaco.evaluate(features), lambda: gpaco.predict(features, save(tmp_path / "one.png"))):
        with pytest.raises(UserError, match="its classifier is untrained"):
            ask()
    last = (features.folder / "checkpoints" / "latest").read_text().strip()
    assert (gpaco.load(features).model.centers.weight == gpaco.load(features, which="last").model.centers.weight).all()
    assert checkpoint.load(features.folder / "checkpoints" / last).state["position"]["best_step"] is None
    assert len(result.history) == 1
    assert result.metrics["assumes"] == "uniform"
    assert gpaco.evaluate(result)["top1"] == result.metrics["top1"]
    before, after = (gpaco.load(one, which="last").state_dict() for one in (features, result))
    weights = [name for name in before if "backbone" in name and name.endswith("weight")]
    assert weights
    assert all((before[name] == after[name]).all() for name in weights), "the second stage trains the head alone"


def test_a_recipe_that_ends_without_a_classifier_is_refused(refuses: Command, tmp_path: Path) -> None:
    text = '[method]\nname = "supcon"\n[[stage]]\nname = "one"\n[[stage]]\nname = "two"\n'
    (tmp_path / "recipe.toml").write_text(text)
    message = refuses("train", "digits", "--recipe", tmp_path / "recipe.toml", "--out", tmp_path / "run")
    assert "the last stage, 'two', trains features but no classifier (supcon)" in message


@pytest.mark.slow
def test_a_run_goes_on_with_other_workers_but_not_with_other_stages(
    prints: Command, refuses: Command, tmp_path: Path
) -> None:
    text = '[method]\nname = "ce"\n[train]\nepochs = 1\nbatch_size = 64\n[[stage]]\nname = "one"\n'
    (tmp_path / "recipe.toml").write_text(text + '[[stage]]\nname = "two"\noptimizer.lr = 0.01\n')
    words = ("digits", "--recipe", tmp_path / "recipe.toml", "--out", tmp_path / "run")
    prints("train", *words)
    prints("train", *words, "--workers", 1, "--set", "train.keep=5", "--set", "train.timeout=3")
    message = refuses("train", *words, "--set", "stage.two.optimizer.lr=0.02")
    assert "holds another run: optimizer.lr was 0.01, now 0.02" in message
    (tmp_path / "recipe.toml").write_text(text)
    assert "holds a run with different stages" in refuses("train", *words)


def test_a_batch_too_small_for_its_parts_is_refused(refuses: Command, tmp_path: Path) -> None:
    words = ("train", "digits", "--batch-size", 3, "--set", "train.accumulate=4", "--out", tmp_path / "run")
    assert "a batch of 3 images is too small for 1 processes and 4 steps of accumulation" in refuses(*words)


def test_without_images_to_evaluate_on_the_model_is_written_and_that_is_said(prints: Command, tmp_path: Path) -> None:
    for k, name in enumerate(("round", "flat", "tall")):
        save(tmp_path / "data" / name / "0.png", seed=k, width=16, height=16)
    words = ("train", tmp_path / "data", "--epochs", 1, "--method", "ce", "--out", tmp_path / "run")
    text = prints(*words)
    assert "there is no data to evaluate on, so only the model was written" in text
    assert gpaco.load(tmp_path / "run").classes == ("flat", "round", "tall")


def test_a_folder_of_small_images_trains_and_the_guesses_are_said(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for k, (name, count) in enumerate({"round": 24, "flat": 8, "tall": 4}.items()):
        for i in range(count):
            save(data / name / f"{i}.png", seed=100 * k + i, width=16, height=16)
    before, said = tree_hash(data), []
    result = gpaco.train(data, out=tmp_path / "run", epochs=1, say=said.append)
    assert tree_hash(data) == before
    assert [row["name"] for row in result.metrics["per_class"]] == ["flat", "round", "tall"]
    text = "\n".join(said)
    for guess in (
        "data: folder of class folders",
        "model.name = resnet8",
        "model.size = 16",
        "optimizer.lr = ",
        "test:",
    ):
        assert guess in text
    rows = gpaco.predict(result, data / "tall")
    assert len(rows) == 4


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs(tmp_path_factory.mktemp("photographs"), {"cat": 80, "dog": 30, "owl": 10})


PHOTOS = ("--model", "resnet8", "--size", 32, "--epochs", 1, "--batch-size", 16, "--workers", 2, "--method", "ce")
PHOTOS = (*PHOTOS, "--set", "train.report=false")


@pytest.mark.slow
def test_a_vision_transformer_trains_is_evaluated_and_predicts(photos: Path, prints: Command, tmp_path: Path) -> None:
    model = ("--model", "test_vit", "--size", 32, "--epochs", 1, "--batch-size", 24, "--lr", 0.001)
    optimizer = ("--set", "optimizer.name=adamw", "--set", "optimizer.layer_decay=0.75", "--set", "model.projector=mae")
    prints("train", photos, *model, *optimizer, "--out", tmp_path / "run")
    assert Run(tmp_path / "run").metrics["n"] == 24
    assert gpaco.evaluate(tmp_path / "run")["top1"] == Run(tmp_path / "run").metrics["top1"]
    prints("predict", tmp_path / "run", photos / "owl", "--out", tmp_path / "rows.csv")
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 11


@pytest.mark.slow
def test_a_truncated_file_is_exit_2_by_its_name_or_left_out_if_asked(
    photos: Path, refuses: Command, prints: Command, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(photos, data / "train")
    save(data / "test" / "cat" / "0.png", seed=5000, width=80, height=60)
    broken = data / "train" / "cat" / "7.jpg"
    broken.write_bytes(broken.read_bytes()[:500])
    before = tree_hash(data)
    words = ("train", data, *PHOTOS, "--validation", 0, "--out", tmp_path / "run")
    cause, remedy = refuses(*words).splitlines()
    assert "cat/7.jpg" in cause
    assert "with `train`, --on-bad-image skip leaves them out" in remedy
    text = prints(*words, "--on-bad-image", "skip")
    assert "left out: train/cat/7.jpg: " in text
    assert Run(tmp_path / "run").metrics["counts"] == [79, 30, 10]
    assert tree_hash(data) == before


@pytest.mark.process
def test_a_terminal_that_is_not_utf8_gets_every_line(tmp_path: Path) -> None:
    data = class_folders(tmp_path / "d", {"k\u00e4fer": 3, "owl": 3})
    assert "k\\xe4fer 3" in run("check", data, more={"PYTHONIOENCODING": "ascii"})


@pytest.mark.process
def test_a_closed_pipe_is_neither_a_bug_nor_a_fault_of_the_disk(tmp_path: Path) -> None:
    with start("train", "digits", "--epochs", 1, "--out", tmp_path / "run") as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 141
    assert "error" not in errors
