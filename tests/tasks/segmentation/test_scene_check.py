"""`gpaco check --task segmentation`: every fault of a pair is named, counts are right, nothing is written."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.commands import here
from helpers.images import tree_hash
from helpers.scenes import save_scene, scene, scene_folder
from numpy.typing import NDArray
from PIL import Image

from gpaco.errors import UserError
from gpaco.recipes.recipe import override
from gpaco.recipes.settings import Data, Recipe
from gpaco.tasks.segmentation.splits import inspected, scene_splits
from gpaco.tasks.segmentation.task import Segmentation

Command = Callable[..., str]


@pytest.fixture
def prints(capsys: pytest.CaptureFixture[str]) -> Command:
    """What `check --task segmentation` prints; it must exit with `code`."""
    return lambda *words, code=0: "".join(here(capsys, "check", *words, "--task", "segmentation", code=code))


def test_good_scenes_are_counted_and_exit_0(tmp_path: Path, prints: Command) -> None:
    folder = scene_folder(tmp_path)
    before = tree_hash(folder)
    facts = json.loads(prints(folder, "--json"))
    assert facts["images"] == {"train": 8, "val": 3, "test": 3}
    masks = [scene(seed)[1] for seed in range(1, 9)]
    assert facts["pixels"]["train"] == {str(c): int(sum((m == c).sum() for m in masks)) for c in range(3)}
    assert facts["ignored"]["train"] == pytest.approx(6 / (40 * 56))
    assert facts["problems"] == facts["bad"] == facts["leaks"] == facts["all_ignored"] == []
    assert facts["suggested"]["segmentation.base_size"] == [40, 56]
    text = prints(folder)
    assert "no problems found" in text
    assert "pixels that belong to no class: train 0.3%" in text
    assert tree_hash(folder) == before


def test_each_fault_of_a_pair_is_named_with_its_file_and_exits_2(tmp_path: Path, prints: Command) -> None:
    folder = scene_folder(tmp_path)
    (folder / "classes.txt").write_text("ground\ntree\nsky\n")
    masks = folder / "masks" / "train"
    Image.fromarray(np.zeros((7, 9), np.uint8)).save(masks / "1.png")
    Image.fromarray(np.full((40, 56), 3, np.uint8)).save(masks / "2.png")
    Image.fromarray(np.zeros((40, 56, 3), np.uint8)).save(masks / "3.png")
    Image.fromarray(np.full((40, 56), 700, np.uint16)).save(masks / "4.png")
    (masks / "5.png").write_bytes(b"")
    (folder / "images" / "train" / "6.png").write_bytes((folder / "images" / "train" / "6.png").read_bytes()[:200])
    Image.fromarray(np.full((40, 56), 255, np.uint8)).save(masks / "7.png")
    text = prints(folder, code=2)
    for part in (
        "1.png has 9 x 7 pixels, its image 56 x 40",
        "2.png has the value 3, but there are 3 classes",
        "3.png is a color image (RGB) instead of a mask of class numbers",
        "4.png has the value 700, but class numbers are 0 to 253",
        "5.png': the file is empty",
        "images/train/6.png",
        "problem: 6 pairs of image and mask cannot be used",
        "images without a labeled pixel: 1\n  train: images/train/7.png",
    ):
        assert part in text
    assert len(json.loads(prints(folder, "--json", code=2))["bad"]) == 6


def test_a_picture_in_two_parts_is_a_leak(tmp_path: Path, prints: Command) -> None:
    folder = scene_folder(tmp_path)
    save_scene(folder / "images" / "test" / "9.png", folder / "masks" / "test" / "9.png", 1)  # the first of training
    assert "problem: 1 image in more than one split" in prints(folder, code=2)


COLORED = ((128, 64, 30), (70, 130, 180), (20, 200, 35))


def repainted(folder: Path, paint: Callable[[Path, NDArray[np.uint8]], None], table: str = "") -> Path:
    """Scenes whose masks are saved again by `paint`, with a table of classes if there is a text for it."""
    scene_folder(folder)
    for path in sorted((folder / "masks").rglob("*.png")):
        numbers = np.array(Image.open(path))
        path.unlink()
        paint(path, numbers)
    if table:
        (folder / "classes.csv").write_text(table)
    return folder


def in_colors(path: Path, numbers: NDArray[np.uint8]) -> None:
    colors = np.zeros((256, 3), np.uint8)
    colors[:3] = COLORED
    Image.fromarray(colors[numbers]).save(path)


@pytest.mark.slow
def test_lossy_masks_gray_levels_and_wrong_colors_are_problems_in_check_and_told_in_train(
    tmp_path: Path, prints: Command
) -> None:
    rows = [f"{name},{red},{green},{blue}" for name, (red, green, blue) in zip("abc", COLORED, strict=True)]
    swapped = ["a,128,64,30", "b,180,130,70", "c,20,200,35"]  # the second as blue, green, red

    def jpeg(path: Path, numbers: NDArray[np.uint8]) -> None:
        Image.fromarray(numbers).save(path.with_suffix(".jpg"), quality=90)

    def webp(path: Path, numbers: NDArray[np.uint8], lossless: bool = False) -> None:
        in_colors(path, numbers)
        Image.open(path).save(path.with_suffix(".webp"), lossless=lossless)
        path.unlink()

    def gray(path: Path, numbers: NDArray[np.uint8]) -> None:
        Image.fromarray(np.where(numbers < 3, 100 * numbers, numbers).astype(np.uint8)).save(path)

    def plain(path: Path, numbers: NDArray[np.uint8]) -> None:
        Image.fromarray(numbers).save(path)

    cases = {  # how masks are saved, the table of classes, what `check` and `train` say
        "jpeg": (jpeg, "", "lossy compression (JPEG) changes the classes"),
        "webp": (webp, "\n".join(rows), "lossy compression (WEBP) changes the classes"),
        "gray": (gray, "", "the masks have the values 0, 100, 200: 198 of 201 classes do not occur"),
        "swapped": (in_colors, "\n".join(swapped), "not in the table of classes, most often 70,130,180"),
        "unused": (plain, "a\nb\nc\nd", "1 class without a training pixel cannot be learned: 'd'"),
    }
    for name, (paint, table, message) in cases.items():
        folder = repainted(tmp_path / name, paint, table)
        assert message in prints(folder, code=2), name
        told: list[str] = []
        recipe = override(Recipe(), ["train.task=segmentation", f"data.path={folder}", "model.weights=none"])
        try:
            Segmentation.prepare(recipe, set(), tmp_path / "run", torch.device("cpu"), told.append)
        except UserError as error:
            told.append(str(error))
        assert any(message in line for line in told), (name, told)
    assert "no problems found" in prints(repainted(tmp_path / "right", in_colors, "\n".join(rows)))
    lossless = repainted(tmp_path / "lossless", partial(webp, lossless=True), "\n".join(rows))
    assert "no problems found" in prints(lossless)


def test_masks_of_black_and_white_need_a_table(tmp_path: Path, prints: Command) -> None:
    for k in range(3):
        image, mask = scene(k)
        for kind, array in (("images", image), ("masks", (mask == 1).astype(np.uint8) * 255)):
            (tmp_path / kind).mkdir(exist_ok=True)
            Image.fromarray(array).save(tmp_path / kind / f"{k}.png")
    assert "have only one class" in prints(tmp_path, code=2)
    (tmp_path / "classes.csv").write_text("name,red,green,blue\nrest,0,0,0\nthing,255,255,255\n")
    assert "no problems found" in prints(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "segmentatoin"], "no task 'segmentatoin'; did you mean 'segmentation'?"),
        (["--task", "segmentation", "--root", "x"], "--root is for tables"),
    ],
)
def test_wrong_options_are_exit_2(words: list[str], message: str, tmp_path: Path, refuses: Command) -> None:
    assert message in refuses("check", tmp_path, *words)


def without_parts(folder: Path, images: int) -> Path:
    for k in range(images):
        save_scene(folder / "images" / f"{k}.png", folder / "masks" / f"{k}.png", k)
    return folder


def starts(folder: Path) -> bool:
    """Whether training gets through its data."""
    try:
        inspected(scene_splits(replace(Recipe(), data=Data(path=str(folder)))), Recipe(), lambda line: None)
    except UserError:
        return False
    return True


def test_a_bad_first_picture_is_one_line_of_the_whole_report(tmp_path: Path, prints: Command) -> None:
    folder = scene_folder(tmp_path)
    for part in ("images/train/0.png", "masks/train/1.png"):  # without a table of classes
        (folder / part).write_bytes(b"")
    facts = json.loads(prints(folder, "--json", code=2))
    assert [one["name"] for one in facts["bad"]] == ["images/train/0.png", "images/train/1.png"]
    assert facts["suggested"]["segmentation.base_size"] == [40, 56]


@pytest.mark.parametrize("images", [1, 2, 3])
def test_check_finds_a_problem_where_too_few_images_keep_training_from_starting(
    images: int, tmp_path: Path, prints: Command
) -> None:
    folder = without_parts(tmp_path, images)
    good = starts(folder)
    assert good == (images == 3)
    text = prints(folder, code=0 if good else 2)
    assert ("no problems found" in text) == good
    assert ("too few to hold some back" in text) == (not good)
    assert ("--validation 0" in text) == (images == 2)  # no remedy where the test part is missing


def test_copies_stay_together_in_training_where_parts_are_made(tmp_path: Path, prints: Command) -> None:
    folder = without_parts(tmp_path, 10)
    for k in range(4):
        for kind in ("images", "masks"):
            shutil.copy(folder / kind / f"{k}.png", folder / kind / f"copy-{k}.png")
    facts = json.loads(prints(folder, "--json"))
    assert facts["images"] == {"train": 10, "val": 1, "test": 3}
    assert facts["leaks"] == []
    train = scene_splits(replace(Recipe(), data=Data(path=str(folder)))).train
    assert {f"images/{name}{k}.png" for k in range(4) for name in ("", "copy-")} <= set(train.names)
    assert starts(folder)


@pytest.mark.parametrize("empty", ["train", "val", "test"])
def test_an_empty_part_is_a_problem_and_stops_training(empty: str, tmp_path: Path, prints: Command) -> None:
    folder = scene_folder(tmp_path, train=3, val=2, test=2)
    for kind in ("images", "masks"):
        shutil.rmtree(folder / kind / empty)
        (folder / kind / empty).mkdir()
    word = {"train": "training", "val": "validation", "test": "test"}[empty]
    assert f"problem: there are no {word} images" in prints(folder, code=2)
    assert not starts(folder)
