"""What people get wrong on their first day is said by check, and by train before anything is read or written."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.images import class_folders, drawing, tree_hash
from helpers.scenes import save_scene
from PIL import Image
from safetensors.torch import save_file

import gpaco
from gpaco.models.small_resnet import SmallResNet
from gpaco.recipes.request import requested
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification.check import check, lines
from gpaco.tasks.classification.splits import held_out, read_splits, splits_of

Command = Callable[..., str]


@pytest.fixture
def problems(prints: Command) -> Command:
    """What check says of data that it finds a problem in; exit 2."""
    return lambda data: prints("check", data, code=2)


@pytest.mark.parametrize(
    ("image", "mask"),
    [("images", "masks"), ("img", "labels"), ("Images", "Annotations"), ("train/images", "train/mask")],
)
def test_images_and_masks_are_not_two_classes(image: str, mask: str, refuses: Command, tmp_path: Path) -> None:
    data = tmp_path / "seg"
    for k in range(3):
        save_scene(data / image / f"{k}.png", data / mask / f"{k}.png", k)
    for words in (("check", data), ("train", data, "--out", tmp_path / "run")):
        message = refuses(*words)
        assert "looks like images and masks" in message
        assert "--task segmentation" in message
    assert not (tmp_path / "run").exists()


def test_results_inside_the_data_are_refused(refuses: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = class_folders(tmp_path / "good", {"ant": 6, "bee": 6})
    before = tree_hash(data)
    monkeypatch.chdir(data)
    for words in (
        ("train", data, "--out", data / "run"),
        ("train", ".", "--out", "run"),
        ("train", "."),
        ("compare", ".", "--out", "c"),
    ):
        assert re.search("is inside the data.*\n  choose an --out outside the data", refuses(*words))
    assert tree_hash(data) == before


def test_a_file_as_out_is_refused_by_its_name(refuses: Command, tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text("mine")
    assert "make.py is a file, not a folder" in refuses("train", "digits", "--out", tmp_path / "make.py")
    assert "make.py is a file, not a folder" in refuses("train", "digits", "--out", tmp_path / "make.py" / "run")


def test_one_class_alone_is_a_problem_and_stops_training(refuses: Command, problems: Command, tmp_path: Path) -> None:
    data = class_folders(tmp_path / "animals", {"ant": 0}) / "ant"
    class_folders(data, {"red": 5})
    words = "all training images are of one class, 'red': there is nothing to classify"
    assert f"problem: {words} (give a folder of class folders: perhaps its parent)" in problems(data)
    assert words in refuses("train", data, "--out", tmp_path / "run")
    (tmp_path / "table.csv").write_text("path,label\nanimals/ant/red/0.png,x\nanimals/ant/red/1.png,x\n")
    assert "give images of two or more classes" in refuses("train", tmp_path / "table.csv", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_empty_class_folder_is_a_problem_with_a_remedy_that_holds(problems: Command, tmp_path: Path) -> None:
    data = class_folders(tmp_path / "data", {"ant": 8, "bee": 8, "none": 0})
    text = problems(data)
    assert (
        "problem: classes without a training image: 'none' (gpaco train --set data.allow_empty_classes=true keeps them)"
        in text
    )
    assert "but kept" not in text
    said: list[str] = []
    recipe, _ = requested(data, None, ["data.allow_empty_classes=true"], {})
    held_out(read_splits(recipe), recipe, said.append)
    assert "kept without a training image: 'none'" in said


def test_check_promises_to_leave_bad_images_out_only_where_train_does(
    refuses: Command, problems: Command, tmp_path: Path
) -> None:
    data = class_folders(tmp_path / "data", {"ant": 25, "bee": 21})
    words = ("train", data, "--on-bad-image", "skip", "--out", tmp_path / "run")
    (data / "ant" / "0.png").write_bytes(b"")
    assert "problem: 1 unreadable image (gpaco train --on-bad-image skip leaves them out)" in problems(data)
    recipe, _ = requested(data, None, [], {"on_bad_image": "skip"})
    assert len(splits_of(recipe).bad) == 1
    (data / "bee" / "0.png").write_bytes(b"")
    cause = refuses(*words).splitlines()[0].removeprefix("error: ")
    assert "2 of 46 images are unreadable" in cause
    assert f"problem: 2 unreadable images, and --on-bad-image skip does not help: {cause}\n" in problems(data)


def test_an_oddity_is_one_line(problems: Command, tmp_path: Path) -> None:
    data = class_folders(tmp_path / "data", {"ant": 3, "bee": 3, "none": 0})
    frames = [Image.fromarray(drawing(seed=k)) for k in (1, 2)]
    frames[0].save(data / "ant" / "moving.gif", save_all=True, append_images=frames[1:])
    odd = [line for line in problems(data).splitlines() if line.startswith("unusual")]
    assert sorted(odd) == [
        "unusual: palette (1 file)",
        "unusual: several frames (only the first is used) (1 file)",
    ]


def test_data_given_twice_is_refused_but_a_recipe_may_get_other_data(refuses: Command, tmp_path: Path) -> None:
    words = ("train", "digits", "--set", f"data.path={tmp_path}", "--out", tmp_path / "run")
    assert re.search("two data sets were given: digits and --set data.path\n  leave out one", refuses(*words))
    recipe, _ = requested(Recipe(), None, [f"data.path={tmp_path}"], {})
    assert recipe.data.path == str(tmp_path)


def test_weights_of_another_model_leave_no_folder_behind(refuses: Command, tmp_path: Path) -> None:
    save_file(SmallResNet(3).state_dict(), tmp_path / "resnet20.safetensors")
    words = ("train", "digits", "--model", "resnet8", "--weights", tmp_path / "resnet20.safetensors")
    assert "does not fit the model" in refuses(*words, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_limits_are_named_where_all_classes_are_in_one_group(tmp_path: Path) -> None:
    data = class_folders(tmp_path / "data", {"ant": 12, "bee": 6, "cat": 3})
    (line,) = [line for line in lines(check(data)) if "all 3 classes are few-shot; to divide them" in line]
    limits = [word for word in line.split() if word.startswith("data.")]  # of the counts without test images
    for settings, told in (([], True), (limits, False)):
        said: list[str] = []
        quick = {"epochs": 1, "model": "resnet8", "size": 16, "report": False, "workers": 0}
        gpaco.train(data, out=tmp_path / f"run-{told}", settings=settings, say=said.append, **quick)
        assert any("to divide them into groups: --set data.many=" in line for line in said) is told
