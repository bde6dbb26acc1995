"""Images that cannot be read, in training: an error by name, or left out of the whole run and listed."""

import csv
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.commands import checkpoint_files
from helpers.images import drawing, photographs, tree_hash
from PIL import Image

import gpaco
from gpaco.data.inspection import fingerprints, read_bad, write_bad
from gpaco.data.readers.read import read
from gpaco.data.samples import BadImage
from gpaco.errors import EnvironmentProblem, UserError
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification.splits import without_unreadable
from gpaco.training.run import BAD_IMAGES, Run

QUICK: dict[str, Any] = {
    "method": "ce",
    "model": "resnet8",
    "size": 16,
    "epochs": 2,
    "batch_size": 8,
    "report": False,
    "say": lambda line: None,
}


COUNTS = {"cat": 28, "dog": 12, "owl": 8}  # 48 images


def spoil(path: Path) -> bytes:
    """Cut a file; what it was."""
    good = path.read_bytes()
    path.write_bytes(good[:300])
    return good


def listed(run: Run) -> list[dict[str, str]]:
    with (run.folder / "bad_images.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def counts(run: Run) -> list[int]:
    return run.metrics["counts"]


def go_back(run: Run) -> None:
    """As if the run had been killed in its last epoch."""
    latest = run.folder / "checkpoints" / "latest"
    shutil.rmtree(latest.with_name(latest.read_text().strip()))
    (run.folder / "metrics.json").unlink()


@pytest.mark.slow
def test_a_bad_image_is_left_out_of_the_whole_run_and_listed(tmp_path: Path) -> None:
    data = photographs(tmp_path / "data", COUNTS)
    clean = gpaco.train(data, out=tmp_path / "clean", on_bad_image="skip", workers=0, **QUICK)
    assert listed(clean) == []
    good = spoil(data / "cat" / "7.jpg")
    before, said = tree_hash(data), []
    run = gpaco.train(data, out=tmp_path / "run", on_bad_image="skip", workers=0, **QUICK | {"say": said.append})
    (row,) = listed(run)
    assert (row["split"], row["name"]) == ("train", "cat/7.jpg")
    assert "truncated" in row["reason"].lower()
    assert f"left out: cat/7.jpg: {row['reason']}" in said
    assert "left out: 1 unreadable image of 48" in said
    assert np.subtract(counts(clean), counts(run)).tolist() == [1, 0, 0]
    assert tree_hash(data) == before
    assert gpaco.evaluate(run)["n"] == run.metrics["n"]

    # Mended meanwhile, it stays out: the run goes on with what it began with, to the same bits.
    files = checkpoint_files(run.folder)
    (data / "cat" / "7.jpg").write_bytes(good)
    assert gpaco.evaluate(run, tune_prior=True)["n"] == run.metrics["n"]
    go_back(run)
    again = gpaco.train(data, out=run.folder, on_bad_image="skip", workers=1, **QUICK)
    assert checkpoint_files(again.folder) == files
    assert len(listed(again)) == 1


def test_one_bad_image_is_never_too_many_but_two_of_48_are(tmp_path: Path) -> None:
    data = photographs(tmp_path / "data", COUNTS)
    for name in ("cat/7.jpg", "dog/3.jpg"):
        spoil(data / name)
    with pytest.raises(UserError, match=r"2 of 48 images are unreadable, more than 1.0%: 'cat/7.jpg: .*'dog/3.jpg: "):
        gpaco.train(data, out=tmp_path / "run", on_bad_image="skip", **QUICK)
    assert not (tmp_path / "run").exists()


def test_a_split_without_a_readable_image_is_none(tmp_path: Path) -> None:
    train = photographs(tmp_path / "data" / "train", {"cat": 3, "dog": 2})
    (tmp_path / "data" / "test" / "cat").mkdir(parents=True)
    (train / "cat" / "1.jpg").rename(tmp_path / "data" / "test" / "cat" / "1.jpg")
    splits = read(tmp_path / "data")
    assert len(splits.test) == 1
    assert without_unreadable(splits, [BadImage("test", splits.test.names[0], "truncated")]).test is None


def test_a_list_of_a_run_that_failed_before_its_first_checkpoint_counts_for_nothing(tmp_path: Path) -> None:
    data = photographs(tmp_path / "data", COUNTS)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text(recipes.dumps(Recipe()))
    write_bad(tmp_path / "run" / BAD_IMAGES, [BadImage("train", "cat/7.jpg", "it was bad once")])
    assert listed(gpaco.train(data, out=tmp_path / "run", on_bad_image="skip", workers=0, **QUICK)) == []


def test_data_that_has_changed_since_a_run_began_is_refused(tmp_path: Path) -> None:
    data = photographs(tmp_path / "data", COUNTS)
    run = gpaco.train(data, out=tmp_path / "run", workers=0, **QUICK)
    go_back(run)
    for i in range(100, 110):
        Image.fromarray(drawing(80, 60, 5000 + i)).save(data / "owl" / f"{i}.jpg")
    with pytest.raises(UserError, match="has changed since it started: different counts"):
        gpaco.train(data, out=tmp_path / "run", workers=0, **QUICK)


def test_a_run_finds_its_data_again_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photographs(tmp_path / "data", COUNTS)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    run = gpaco.train("data", out="run", workers=0, **QUICK)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert gpaco.evaluate("../run")["n"] == Run(tmp_path / run.folder).metrics["n"]


def test_data_under_a_name_that_is_not_utf8_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    data = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    photographs(Path(data), COUNTS)
    with pytest.raises(UserError, match="is not UTF-8") as error:
        gpaco.train(data, out=tmp_path / "run", workers=0, **QUICK)
    assert error.value.cause.isprintable()
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="there is no data to train on"):
        gpaco.train("", out=tmp_path / "run", workers=0, **QUICK)


def test_copies_of_an_image_stay_together_in_training(tmp_path: Path) -> None:
    data = photographs(tmp_path / "data", COUNTS)
    for i in range(28):
        shutil.copy(data / "cat" / f"{i}.jpg", data / "cat" / f"copy-{i}.jpg")
    samples = read(data).train
    prints = fingerprints(samples.paths or ())
    assert len(set(prints)) == 48
    assert prints[samples.names.index("cat/3.jpg")] == prints[samples.names.index("cat/copy-3.jpg")]
    run = gpaco.train(data, out=tmp_path / "run", workers=0, **QUICK)  # or there would be leaks between its parts
    assert counts(run)[0] == 56


def test_the_list_keeps_odd_names_and_a_foreign_one_is_refused(tmp_path: Path) -> None:
    rows = [BadImage("train", 'a, "b"\n é.jpg', "the file is empty"), BadImage("test", "c.jpg", "")]
    write_bad(tmp_path / "bad_images.csv", rows)
    assert read_bad(tmp_path / "bad_images.csv") == rows
    for content in ("", "a,b\n", "split,name,reason\n1,2\n", '"'):
        (tmp_path / "bad_images.csv").write_text(content)
        with pytest.raises(UserError, match="was changed after it was written"):
            read_bad(tmp_path / "bad_images.csv")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_disk_that_fails_in_mid_run_is_named_with_exit_3(workers: int, tmp_path: Path) -> None:
    data = photographs(tmp_path / "data", COUNTS)
    (data / "cat" / "7.jpg").unlink()
    os.symlink("/proc/self/mem", data / "cat" / "7.jpg")  # reading it is an input/output error
    with pytest.raises(EnvironmentProblem, match=r"cannot read .*7.jpg': Input/output error") as error:
        gpaco.train(data, out=tmp_path / "run", validation=0, workers=workers, **QUICK)
    assert error.value.exit_code == 3


def test_a_fault_of_the_disk_that_passes_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = photographs(tmp_path / "data", COUNTS)
    place, good = data / "cat" / "7.jpg", tmp_path / "good.jpg"
    samples = read(data).train
    place.rename(good)
    os.symlink("/proc/self/mem", place)
    monkeypatch.setattr("time.sleep", lambda seconds: good.replace(place))  # fixed before it is read again
    assert samples.load(samples.names.index("cat/7.jpg")).shape == (60, 80, 3)
