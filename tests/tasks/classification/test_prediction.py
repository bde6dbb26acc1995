"""Rows about new images: where they come from, what is in them, how they are written, what a bad file does."""

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.images import tree_hash
from PIL import Image

import gpaco
from gpaco.data.readers.read import read
from gpaco.errors import UserError
from gpaco.tasks.classification.predictor import Predictor
from gpaco.training.run import Run


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 40 test images, one of them in a folder below, and a file that is none."""
    folder = tmp_path_factory.mktemp("images")
    samples = read("digits").test
    (folder / "deep").mkdir()
    for i in range(40):
        Image.fromarray(samples.load(i)).save((folder / "deep" if i == 39 else folder) / f"{i:02}.png")
    (folder / "notes.md").write_text("no image")
    return folder


def test_predictions_are_those_of_the_evaluation(trained: Run, images: Path) -> None:
    rows = gpaco.predict(trained, images)
    logits = np.load(trained.folder / "predictions.npz")["logits"][:40]
    probabilities = torch.from_numpy(logits).softmax(1).numpy()
    assert [Path(row["path"]).stem for row in rows] == [f"{i:02}" for i in range(40)]
    assert [row["class"] for row in rows] == [str(c) for c in logits.argmax(1)]
    np.testing.assert_allclose([row["probability"] for row in rows], probabilities.max(1), atol=1e-4)


def test_a_model_that_diverged_predicts_nothing(trained: Run, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Predictor, "forward", lambda self, pixels: torch.full((len(pixels), 10), torch.nan))
    with pytest.raises(UserError, match="not finite"):
        gpaco.predict(trained, images)


def test_a_row_has_class_probability_group_and_the_top_five(trained: Run, images: Path) -> None:
    (row,) = gpaco.predict(trained, images / "00.png")
    assert set(row) == {"path", "class", "probability", "group", "train", "top", "error"}
    assert row["error"] is None
    assert (row["class"], row["probability"]) == tuple(row["top"][0])
    shares = [share for _, share in row["top"]]
    assert len(shares) == 5
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1 + 1e-5
    per_class = {one["name"]: (one["group"], one["train"]) for one in trained.metrics["per_class"]}
    assert (row["group"], row["train"]) == per_class[row["class"]]


def test_files_folders_and_lists_are_all_taken_in_order(trained: Run, images: Path, tmp_path: Path) -> None:
    listing = images.parent / "some.txt"
    listing.write_text(f"{images.name}/05.png\n\n{images / '04.png'}\n")
    rows = gpaco.predict(trained, [images / "07.png", images / "deep", listing])
    assert [Path(row["path"]).name for row in rows] == ["07.png", "39.png", "05.png", "04.png"]
    assert not any(row["error"] for row in rows)


def test_a_bad_file_is_a_row_with_its_error_and_the_others_are_predicted(
    trained: Run, images: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.png").write_bytes((images / "01.png").read_bytes()[:40])
    (tmp_path / "empty.jpg").touch()
    paths = [
        images / "00.png",
        tmp_path / "broken.png",
        tmp_path / "empty.jpg",
        tmp_path / "list.txt",
        images / "02.png",
    ]
    paths[3].write_text("none.png")
    rows = gpaco.predict(trained, paths, batch_size=2)
    assert [row["error"] is None for row in rows] == [True, False, False, False, True]
    assert [row["class"] is None for row in rows] == [False, True, True, True, False]
    assert "does not exist" in rows[3]["error"]
    assert all("\n" not in (row["error"] or "") for row in rows)
    alone = gpaco.predict(trained, [paths[0], paths[4]])
    assert [row["class"] for row in (rows[0], rows[4])] == [row["class"] for row in alone]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_rows_are_written_in_the_form_that_the_name_says_and_nothing_else_is(
    suffix: str, trained: Run, images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / f"rows{suffix}"
    before = tree_hash(trained.folder), tree_hash(images)
    (tmp_path / "list.txt").write_text('none, "quoted".png')
    rows = gpaco.predict(trained, [images, tmp_path / "list.txt"], out=out)
    assert (tree_hash(trained.folder), tree_hash(images)) == before
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    if suffix == ".csv":
        with out.open(newline="") as file:
            read_back = list(csv.DictReader(file))
        assert [row["class"] for row in read_back] == [row["class"] or "" for row in rows]
        assert [row["path"] for row in read_back] == [row["path"] for row in rows]
        assert [row["train"] for row in read_back] == [
            "" if row["train"] is None else str(row["train"]) for row in rows
        ]
        assert float(read_back[0]["probability_5"]) == rows[0]["top"][4][1]
        assert read_back[-1]["error"] == rows[-1]["error"]
    else:
        read_back = [json.loads(line) for line in out.read_text().splitlines()]
        assert read_back == json.loads(json.dumps([row | {"written_by": "gpaco predict"} for row in rows]))


def test_a_wrong_prior_leaves_earlier_predictions_alone(trained: Run, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    out.write_bytes(b"path,class,probability,group,train,class_1,probability_1,error\r\nof yesterday")
    with pytest.raises(UserError, match=r"no file 'unifrom'; did you mean 'uniform'\?"):
        gpaco.predict(trained, images, out=out, prior="unifrom")
    assert out.read_text().endswith("of yesterday")


def test_earlier_predictions_are_replaced_only_when_all_new_ones_are_there(
    trained: Run, images: Path, tmp_path: Path
) -> None:
    class Killed(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Killed

    for suffix in ("csv", "jsonl", "parquet"):
        out = tmp_path / f"rows.{suffix}"
        gpaco.predict(trained, images, out=out)
        before = out.read_bytes()
        with pytest.raises(Killed):
            gpaco.predict(trained, images, out=out, progress=stop)
        assert out.read_bytes() == before
        assert not list(tmp_path.glob(".*"))


def test_a_folder_without_images_is_refused(trained: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no image in"):
        gpaco.predict(trained, tmp_path)


def test_probabilities_follow_the_prior_and_the_correction(trained: Run, images: Path) -> None:
    plain = gpaco.predict(trained, images, top=10)
    counts = np.array(trained.metrics["counts"], dtype=float)
    card = gpaco.load(trained).card
    share, temperature = np.array(card.center_share), 1 / card.calibration.head
    factors = {"prior": counts / counts.sum(), "unbiased": (1 / share) ** (1 / temperature)}
    wanted = {"prior": {"prior": "train"}, "unbiased": {"unbiased": True}}
    for name, factor in factors.items():
        rows = gpaco.predict(trained, images, top=10, **wanted[name])
        for before, after in zip(plain, rows, strict=True):
            odds = {c: p * factor[int(c)] for c, p in before["top"]}
            total = sum(odds.values())
            assert dict(after["top"]) == pytest.approx({c: p / total for c, p in odds.items()}, abs=2e-4), name


def test_several_runs_are_an_ensemble_and_a_run_twice_changes_no_class(trained: Run, images: Path) -> None:
    once, twice = gpaco.predict(trained, images), gpaco.predict([trained, trained.folder], images)
    assert [row["class"] for row in once] == [row["class"] for row in twice]


def test_models_of_an_ensemble_see_images_at_their_own_sizes(trained: Run, images: Path, tmp_path: Path) -> None:
    quick = {"long_tail": 20, "epochs": 1, "batch_size": 64, "say": lambda line: None}
    larger = gpaco.train("digits", out=tmp_path / "larger", method="ce", size=12, **quick)
    rows = gpaco.predict([trained, larger], images)
    logits = sum(np.load(run.folder / "predictions.npz")["logits"][:40] for run in (trained, larger)) / 2
    assert [row["class"] for row in rows] == [str(c) for c in logits.argmax(1)]


def test_a_name_that_is_not_utf8_is_written_all_the_same(trained: Run, images: Path, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9.png"
    shutil.copy(images / "00.png", odd)
    for suffix in (".csv", ".jsonl"):
        (row,) = gpaco.predict(trained, os.fsdecode(odd), out=tmp_path / f"rows{suffix}")
        assert row["path"].endswith("caf\\xe9.png")
        assert "caf" in (tmp_path / f"rows{suffix}").read_text()


def test_a_list_to_train_on_is_understood(trained: Run, images: Path) -> None:
    shutil.copy(images / "06.png", images.parent / "by hand 7")
    listing = images.parent / "labeled.txt"
    listing.write_text(f"{images.name}/05.png 3\n{images.name}/04.png\t0\nby hand 7\ngone 8.png 1\nwith blank.png\n")
    rows = gpaco.predict(trained, listing)
    assert [Path(row["path"]).name for row in rows] == ["05.png", "04.png", "by hand 7", "gone 8.png", "with blank.png"]
    assert [row["error"] is None for row in rows] == [True, True, True, False, False]


def test_a_path_that_does_not_exist_is_refused_with_the_nearest_name(trained: Run, images: Path) -> None:
    with pytest.raises(UserError, match=r"00\.pgn' does not exist; did you mean '00\.png'\?"):
        gpaco.predict(trained, [images / "01.png", images / "00.pgn"])
    with pytest.raises(UserError, match=r"nothere/00\.png' does not exist\n"):
        gpaco.predict(trained, images / "nothere" / "00.png")


@pytest.mark.parametrize("suffix", [".csv", ".TSV", ".parquet", ".pq"])
def test_a_table_is_named_as_one(suffix: str, trained: Run, tmp_path: Path) -> None:
    (tmp_path / f"some{suffix}").write_text("path,label\n")
    with pytest.raises(UserError, match=r"is a table, not an image\ngive images, folders"):
        gpaco.predict(trained, tmp_path / f"some{suffix}")


def test_progress_is_told(trained: Run, images: Path) -> None:
    told: list[tuple[int, int]] = []
    gpaco.predict(trained, images, batch_size=16, progress=lambda done, total: told.append((done, total)))
    assert told == [(16, 40), (32, 40), (40, 40)]
