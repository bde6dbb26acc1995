"""`check`: what it finds in data with known trouble, and the settings it suggests; bad images left out."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.images import class_folders, drawing, save, tree_hash
from PIL import Image

from gpaco.data.inspection import bad_images, find_bad, inspect
from gpaco.data.leaks import refuse_leaks
from gpaco.data.readers.read import read
from gpaco.data.samples import Samples, Splits
from gpaco.errors import UserError
from gpaco.metrics.groups import gini, imbalance_factor
from gpaco.metrics.optimum import optimal_probabilities
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification.check import check, lines
from gpaco.tasks.classification.defaults import suggest
from gpaco.tasks.classification.splits import without_unreadable


def troubled(root: Path) -> Path:
    """Three classes with everything that can be wrong in files that are still there."""
    class_folders(root / "train", {"ant": 130, "bee": 30, "cat": 1})
    class_folders(root / "val", {"ant": 5}, seed=1000)
    class_folders(root / "test", {"ant": 5, "bee": 5}, seed=2000)
    train = root / "train"
    (train / "ant" / "empty.jpg").write_bytes(b"")
    (train / "bee" / "cut.png").write_bytes((train / "bee" / "0.png").read_bytes()[:100])
    (train / "bee" / "page.jpg").write_bytes(b"<html>")
    (train / "ant" / "again.png").write_bytes((train / "ant" / "0.png").read_bytes())
    (train / "bee" / "ant.png").write_bytes((train / "ant" / "1.png").read_bytes())
    (root / "test" / "bee" / "leak.png").write_bytes((train / "bee" / "5.png").read_bytes())
    Image.fromarray(drawing()).convert("CMYK").save(train / "ant" / "cmyk.jpg")
    save(train / "ant" / "wide.bmp", seed=77, width=64)
    return root


def test_check_finds_what_is_wrong_and_touches_nothing(tmp_path: Path) -> None:
    root = troubled(tmp_path / "d")
    before = tree_hash(root)
    seen: list[tuple[int, int]] = []
    facts = json.loads(json.dumps(check(root, progress=lambda done, total: seen.append((done, total)))))
    assert tree_hash(root) == before
    assert seen[-1] == (184, 184)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert facts["images"] == {"train": 168, "val": 5, "test": 11}
    assert facts["counts"]["train"] == {"ant": 134, "bee": 33, "cat": 1}
    assert facts["imbalance_factor"] == 134
    assert facts["groups"] == {
        "many": {"classes": 1, "images": 134},
        "medium": {"classes": 1, "images": 33},
        "few": {"classes": 1, "images": 1},
    }
    assert facts["one_image"] == ["cat"]
    assert facts["no_image"] == {"train": [], "val": ["bee", "cat"], "test": ["cat"]}
    bad = {one["name"]: one["what"] for one in facts["bad"]}
    assert bad.keys() == {"train/ant/empty.jpg", "train/bee/cut.png", "train/bee/page.jpg"}
    assert bad["train/ant/empty.jpg"] == "the file is empty"
    assert "not a JPEG" in bad["train/bee/page.jpg"]
    assert facts["odd"] == [{"part": "train", "name": "train/ant/cmyk.jpg", "what": ["CMYK"]}]
    assert facts["duplicates"] == [["train/ant/0.png", "train/ant/again.png"], ["train/ant/1.png", "train/bee/ant.png"]]
    assert facts["two_classes"] == [["train/ant/1.png", "train/bee/ant.png"]]
    assert facts["leaks"] == [["train/bee/5.png", "test/bee/leak.png"]]
    assert facts["sizes"]["common"][0] == {"width": 12, "height": 10, "images": 179}
    assert (facts["sizes"]["smallest"], facts["sizes"]["median"], facts["sizes"]["largest"]) == (10, 10, 30)
    assert len(facts["problems"]) == 2
    text = "\n".join(lines(facts))
    for part in (
        "imbalance factor: 134",
        "unusual: CMYK (1 file)",
        "train/bee/5.png = test/bee/leak.png",
        "train/ant/empty.jpg (train): the file is empty",
        "problem: 3 unreadable images",
        "problem: 1 image in more than one split",
    ):
        assert part in text


def test_good_data_have_no_problems(tmp_path: Path) -> None:
    facts = check(class_folders(tmp_path, {"a": 5, "b": 3}))
    assert facts["problems"] == facts["bad"] == facts["odd"] == facts["leaks"] == facts["duplicates"] == []
    text = lines(facts)
    assert text[0] == "read as: folder of class folders"
    assert text[-1] == "no problems found"
    assert "  a 5, b 3" in text
    assert "test: none given; 2 of 8 training images, 20% of each class, seed 0" in text
    settings = {line.split("  ")[1]: line.split()[-1] for line in text if line.startswith("  ") and " = " in line}
    assert settings["train.batch_size = 5"] == "--batch-size"  # two are tested on, one selects
    assert settings["method.memory = 4"] == "method.memory="
    assert len({line.index("--") for line in text if line.startswith("  ") and " = " in line}) == 1, "flags are aligned"


def test_class_names_that_differ_only_in_case_are_named(tmp_path: Path) -> None:
    facts = check(class_folders(tmp_path, {"Pug": 3, "pug": 4, "boxer": 5}))
    assert facts["alike"] == ["Pug", "pug"]
    assert "class names that differ only in case or spaces: 'Pug', 'pug'" in lines(facts)


def test_images_in_memory_are_checked_too() -> None:
    images = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 3), np.uint8)
    images[7] = images[2]
    train = Samples(np.arange(6) % 2, ("a", "b"), images=images[:6])
    test = Samples(np.arange(4) % 2, ("a", "b"), images=images[6:])
    facts = check(Splits(train, None, test, "arrays"))
    assert facts["leaks"] == [["train: 2", "test: 1"]]
    assert facts["two_classes"] == facts["leaks"]


def test_gini_is_the_mean_difference_of_all_pairs() -> None:
    counts = np.random.default_rng(0).integers(0, 500, 40)
    pairs = np.abs(counts[:, None] - counts[None]).mean() / (2 * counts.mean())
    assert gini(counts) == pytest.approx(pairs, rel=1e-12)
    assert gini([3, 3]) == 0
    assert gini([0, 0]) == 0
    assert imbalance_factor(np.array([0, 4, 8])) == 2
    assert imbalance_factor(np.array([0, 0])) is None


def test_leaks_are_refused_for_ones_own_data_and_noted_for_published_sets(tmp_path: Path) -> None:
    splits = read(troubled(tmp_path))
    same = r"1 image in more than one split, for instance train/bee/5.png = test/bee/leak.png"
    with pytest.raises(UserError, match=same):
        refuse_leaks(splits)
    clean = Splits(splits.train, splits.val, None, splits.reader)
    assert refuse_leaks(clean) is clean
    published = Splits(splits.train, splits.val, splits.test, "CIFAR-100")
    assert "as published" in refuse_leaks(published).notes[-1]


def test_bad_images_are_found_and_left_out_of_everything(tmp_path: Path) -> None:
    splits = read(troubled(tmp_path))
    bad = bad_images(splits)
    assert [(one.split, one.name) for one in bad] == [
        ("train", "train/ant/empty.jpg"),
        ("train", "train/bee/cut.png"),
        ("train", "train/bee/page.jpg"),
    ]
    with pytest.raises(UserError, match=r"3 of 184 images are unreadable, more than 1.0%: 'train/ant/empty.jpg: "):
        without_unreadable(splits, bad)
    clean = without_unreadable(splits, bad, limit=0.02)
    assert clean.train.counts.tolist() == [133, 31, 1]
    assert bad_images(clean) == []
    assert clean.notes[-1] == "left out: 3 unreadable images of 184"
    assert without_unreadable(clean, []) is clean


def test_a_class_whose_images_are_all_bad_is_not_left_out_silently(tmp_path: Path) -> None:
    root = class_folders(tmp_path, {"a": 300, "b": 0})
    (root / "b" / "0.png").write_bytes(b"")
    splits = read(root)
    with pytest.raises(UserError, match="all training images of 'b' are unreadable"):
        without_unreadable(splits, bad_images(splits))


def test_an_inspection_of_a_file_that_is_gone_has_its_reason_and_no_digest(tmp_path: Path) -> None:
    splits = read(class_folders(tmp_path, {"a": 2}))
    (tmp_path / "a" / "1.png").unlink()
    gone = inspect(splits.train)[1]
    assert gone.reason == "the file does not exist"
    assert gone.digest == ""
    assert find_bad(splits.train) == [(1, "the file does not exist")]


SCRATCH = recipes.change(Recipe(), {"model.weights": "none", "train.part": "all"})


def in_memory_set(images: int, side: int) -> Splits:
    pixels = np.zeros((images, side, side, 3), np.uint8)
    return Splits(Samples(np.arange(images) % 2, ("a", "b"), images=pixels), None, None, "arrays")


@pytest.mark.parametrize(
    ("images", "side", "gpu", "expected"),
    [
        (10_847, 32, False, {"model.name": "resnet8", "model.size": 32, "method.memory": 128, "method.alpha": 0.01}),
        (10_847, 32, True, {"model.name": "resnet32", "train.batch_size": 128, "train.epochs": 200}),
        (10_847, 32, True, {"optimizer.lr": 0.05}),
        (10_847, 32, True, {"views.first": "cifar_regular", "views.second": "cifar_aug"}),
        (500, 8, False, {"model.size": 8, "views.first": "plain", "method.memory": 128, "train.batch_size": 16}),
        (500, 8, True, {"model.name": "resnet8"}),
        (20_000, 28, False, {"views.first": "plain", "views.second": "plain", "train.epochs": 20}),
        (3, 32, False, {"train.batch_size": 8, "train.epochs": 200, "method.memory": 4}),
    ],
)
def test_settings_for_images_in_memory(images: int, side: int, gpu: bool, expected: dict[str, object]) -> None:
    found = suggest(SCRATCH, set(), in_memory_set(images, side).train, gpu=gpu)
    assert {key: found[key] for key in expected} == expected


def test_alpha_leaves_the_center_of_the_most_frequent_class_a_third_of_the_target() -> None:
    data = in_memory_set(10_000, 32).train
    for given, part, alpha in (({}, "all", 0.01), ({"method.memory": 8192}, "all", 0.0005), ({}, "head", None)):
        recipe = recipes.change(SCRATCH, {"train.part": part, **given})
        found = suggest(recipe, set(given), data)
        assert found.get("method.alpha") == alpha
        if alpha is not None:
            memory = given.get("method.memory", found.get("method.memory"))
            center = optimal_probabilities(data.counts, alpha=alpha, memory=memory, batch=128).center
            assert 0.28 < center.min() < 0.4


def test_the_rate_follows_the_batch_that_the_data_allows() -> None:
    recipe = recipes.change(SCRATCH, {"train.batch_size": 1024})
    found = suggest(recipe, {"train.batch_size"}, in_memory_set(100, 32).train)
    assert found["optimizer.lr"] == round(0.05 * 100 / 128, 5)


def test_a_head_has_a_hidden_layer_unless_its_centers_start_as_means_of_features() -> None:
    data = in_memory_set(100, 32).train
    for name, hidden in (("gpaco", 512), ("lift", 0)):
        recipe = recipes.change(Recipe(), {"method.name": name, "train.part": "head"})
        assert suggest(recipe, set(), data)["model.hidden"] == hidden


def test_views_go_with_the_number_of_steps_that_was_asked_for() -> None:
    data = in_memory_set(10_847, 32)
    for gpu, epochs, view in ((False, 400, "cifar_regular"), (True, 15, "plain")):
        recipe = replace(SCRATCH, train=replace(SCRATCH.train, epochs=epochs))
        assert suggest(recipe, {"train.epochs"}, data.train, gpu=gpu)["views.first"] == view


@pytest.mark.parametrize(
    ("side", "gpu", "expected"),
    [
        (300, False, {"model.name": "resnet18", "model.size": 128, "views.first": "rand", "views.second": "sim"}),
        (300, True, {"model.name": "resnet50", "model.size": 224, "views.first": "rand", "views.second": "sim"}),
        (100, True, {"model.name": "resnet50", "model.size": 96}),
        (32, False, {"model.name": "resnet8", "model.size": 32, "views.first": "plain", "views.second": "plain"}),
    ],
)
def test_settings_for_files(tmp_path: Path, side: int, gpu: bool, expected: dict[str, object]) -> None:
    for i in range(5):
        save(tmp_path / "ab"[i % 2] / f"{i}.png", i, width=side + 20 * i, height=side)
    (tmp_path / "a" / "bad.png").write_bytes(b"")
    found = suggest(SCRATCH, set(), read(tmp_path).train, gpu=gpu)
    assert {key: found[key] for key in expected} == expected
