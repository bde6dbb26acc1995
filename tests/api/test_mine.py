"""gpaco mine: probable and different candidates for rare classes, as a table and a page."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.commands import fails, run
from helpers.images import class_folders
from PIL import Image

import gpaco
from gpaco.data.readers.digits import read_digits
from gpaco.errors import UserError
from gpaco.recipes.recipe import override
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification.card import build_model, describe
from gpaco.tasks.classification.mining import Pool, candidates, chosen_classes, look_at, read_as_tested
from gpaco.tasks.classification.predictor import Predictor
from gpaco.tasks.classification.splits import splits_of
from gpaco.training.run import Run


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "digits"
    quick = {"method": "balanced-softmax", "epochs": 1, "report": False, "say": lambda line: None}
    return gpaco.train("digits", out=out, long_tail=50, **quick)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unlabeled test digits, one of them twice, and a file that is no image."""
    folder = tmp_path_factory.mktemp("pool")
    samples = read_digits().test
    for i, image in enumerate(samples.images[:60]):
        Image.fromarray(image).save(folder / f"{i:03}.png")
    shutil.copy(folder / "000.png", folder / "copy.png")
    (folder / "broken.png").write_bytes(b"no image")
    return folder


@pytest.mark.process
def test_the_command_writes_a_table_and_a_page_of_thumbnails(digits: Run, pool: Path, tmp_path: Path) -> None:
    out, told = tmp_path / "new" / "candidates.csv", list[str]()
    said = run("mine", digits.folder, pool, "--n", 10, "--out", out)
    assert "1 of them could not be read" in said
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    card = gpaco.load(digits).card
    counts = dict(zip(card.classes, card.counts, strict=True))
    offered = {row["class"] for row in rows}
    rare = [card.classes[c] for c in chosen_classes("rare", card)]
    wanted = [name for name in rare if name in offered]
    assert len(wanted) >= 2
    assert list(dict.fromkeys(row["class"] for row in rows)) == wanted
    assert [counts[name] for name in wanted] == sorted(counts[name] for name in wanted)
    assert all(counts[name] < 20 for name in wanted)
    assert 5 <= len(rows) == len({row["path"] for row in rows}) <= 10
    page = out.with_suffix(".html").read_text()
    assert page.count("<img ") == len(rows)
    assert 'src="http' not in page
    for name in wanted:
        ranks = [row for row in rows if row["class"] == name]
        assert [int(row["rank"]) for row in ranks] == list(range(1, len(ranks) + 1))
        assert [row["probability"] for row in ranks] == sorted((row["probability"] for row in ranks), reverse=True)
    assert len(gpaco.mine(digits, pool, classes=f"{wanted[0]}, {wanted[1]}", n=2)) == 2
    twice = gpaco.mine(digits, [pool, pool / "000.png"], n=100, say=told.append)  # each image once, and no copy
    assert len(rows) < len(twice) == len({row["path"] for row in twice}) < 61
    assert told[-1] == f"{len(twice)} candidates instead of 100: no other image is likely to be of these classes"


def test_images_of_the_run_itself_are_not_offered(tmp_path: Path) -> None:
    data, told = class_folders(tmp_path / "data", {"a": 20, "b": 20, "c": 6}), list[str]()
    quick = {"method": "ce", "model": "resnet8", "weights": "none", "train": "all", "report": False}
    made = gpaco.train(data, out=tmp_path / "run", epochs=1, say=lambda line: None, **quick)
    shutil.copy(data / "c" / "0.png", tmp_path / "new.png")
    rows = gpaco.mine(made, [data, tmp_path / "new.png"], classes="a,b,c", n=3, say=told.append)
    assert {row["path"] for row in rows} <= {str(tmp_path / "new.png")}
    assert told[0] == "left out: 46 images of the data of the run, which has their labels"
    with pytest.raises(UserError, match="all of these images are from the data of the run"):
        gpaco.mine(made, data)


def test_candidates_are_probable_different_and_offered_once() -> None:
    """Two classes in a pool where the most probable images of each are copies of one another."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 16)).astype(np.float32)
    logits = np.zeros((40, 3), np.float32)
    logits[:10, 1], logits[10:20, 2] = np.linspace(6, 5, 10), np.linspace(6, 5, 10)
    features[:4] = features[0]  # the four most probable
    logits[39] = np.nan  # unreadable
    found = candidates(Pool(logits, features), [1, 2], 6)
    assert [one.label for one in found] == [1, 1, 1, 2, 2, 2]
    first = [one.image for one in found[:3]]
    assert first[0] == 0
    assert not {1, 2, 3} & set(first)
    assert set(first) <= set(range(10))
    assert {one.image for one in found[3:]} <= set(range(10, 20))
    everything = candidates(Pool(logits, features), [1, 2], 100)  # the others are no more probable than chance
    assert sorted(one.image for one in everything) == [0, *range(4, 20)]
    logits[25:30, 1], logits[25:30, 0] = 1.9, 2  # predicted as a class that nobody asked for, but likely
    assert {one.image for one in candidates(Pool(logits, features), [1, 2], 100)} == {0, *range(4, 20), *range(25, 30)}
    logits[:, 1] = -200  # a probability of 0 in float32
    assert not candidates(Pool(logits, features), [1], 30)


@pytest.mark.parametrize("name", ["ce", "bbn", "reslt", "ride", "oltr", "lift"])
def test_what_the_model_makes_of_a_pool_is_what_it_predicts(name: str, pool: Path) -> None:
    given = ["data.path=digits", "model.name=resnet8", "model.weights=none", "model.size=8", f"method.name={name}"]
    recipe = override(Recipe(), given)
    card = replace(describe(recipe, splits_of(recipe)), assumes="uniform")
    torch.manual_seed(0)
    predictor = Predictor(build_model(card), card).eval()
    files = sorted(pool.glob("00*.png"))
    found, _ = look_at(predictor, files)
    pixels = torch.from_numpy(np.stack([read_as_tested(file, predictor) for file in files]))
    with torch.inference_mode():
        expected = predictor(pixels.permute(0, 3, 1, 2))
    np.testing.assert_allclose(found.logits, expected.numpy(), rtol=1e-4, atol=1e-4)
    assert found.features.shape == (len(files), predictor.model.num_features)


@pytest.mark.process
def test_wrong_input_is_refused_with_a_remedy(digits: Run, segmenter: Run, pool: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "c.csv")
    assert "is not a run" in fails("mine", tmp_path, pool, *out)
    assert "does not exist" in fails("mine", digits.folder, tmp_path / "none", *out)
    for options, message in (
        ({"classes": "seven"}, "no class 'seven'"),
        ({"classes": " , "}, "no class is given"),
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"out": tmp_path / "c.txt"}, "use a name that ends in .csv"),
    ):
        with pytest.raises(UserError, match=message):
            gpaco.mine(digits, pool, **options)
    with pytest.raises(UserError, match="is a run of segmentation"):
        gpaco.mine(segmenter, pool)
    with pytest.raises(UserError, match="no image could be read"):
        gpaco.mine(digits, pool / "broken.png")
    with pytest.raises(UserError, match="does not have the number of training images"):
        chosen_classes("rare", replace(gpaco.load(digits).card, counts=None))
    assert not (tmp_path / "c.csv").exists()


def test_a_class_with_a_comma_in_its_name_can_be_named(digits: Run) -> None:
    card = replace(gpaco.load(digits).card, classes=("Smith, John", "Smith", *"23456789"))
    assert chosen_classes("Smith, John", card) == [0]
    assert sorted(chosen_classes("Smith, 2", card)) == [1, 2]
    with pytest.raises(UserError, match="no class 'John'"):
        chosen_classes("John, Smith", card)
