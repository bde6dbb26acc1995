"""Figures of runs: on their own data and on other data, of ensembles, under priors, corrected for the loss's bias."""

import csv
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
import torch
from helpers.images import class_folders
from PIL import Image

import gpaco
from gpaco.data.readers.read import read
from gpaco.errors import UserError
from gpaco.metrics.classification import summarize
from gpaco.recipes.recipe import override
from gpaco.recipes.request import requested
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification.evaluation import logits_of
from gpaco.tasks.classification.learner import ClassificationLearner
from gpaco.tasks.classification.logits import read_prior
from gpaco.tasks.classification.splits import other_data, splits_of
from gpaco.tasks.classification.task import Classification
from gpaco.training.run import Run

QUICK = {"long_tail": 20, "epochs": 2, "batch_size": 64, "lr": 0.05, "report": False, "say": lambda line: None}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Small runs: of our method as published with two seeds, with our prior, and cross-entropy."""
    folder = tmp_path_factory.mktemp("runs")
    published = {"method": "gpaco", "settings": ["method.memory=64", "method.prior=counts", "method.alpha=0.05"]}
    wanted = {
        "counts": published,
        "other": published | {"seed": 1},
        "unbiased": {"method": "gpaco", "settings": ["method.memory=64"]},
        "ce": {"method": "ce"},
    }
    return {name: gpaco.train("digits", out=folder / name, **QUICK, **more) for name, more in wanted.items()}


@pytest.mark.slow
def test_a_run_without_a_report_has_figures_and_predictions_and_no_page(runs: dict[str, Run]) -> None:
    names = {path.name for path in runs["ce"].folder.iterdir()}
    assert {"metrics.json", "predictions.npz"} <= names
    assert not {"report.html", "report", "analysis.json"} & names


@pytest.mark.slow
def test_a_run_that_was_killed_after_its_calibration_ends_with_the_same_metrics(tmp_path: Path) -> None:
    def train() -> dict[str, bytes]:
        run = gpaco.train("digits", out=tmp_path / "run", long_tail=20, epochs=1, batch_size=64, report=False, say=str)
        return {name: (run.folder / name).read_bytes() for name in ("calibration.json", "metrics.json")}

    whole = train()
    assert json.loads(whole["calibration.json"])["head"] != 1
    (tmp_path / "run" / "metrics.json").unlink()
    assert train() == whole


@pytest.mark.slow
def test_what_is_evaluated_on_is_said_and_that_most_of_it_was_trained_on(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data")
    run = gpaco.train(data, out=tmp_path / "run", method="ce", epochs=1, batch_size=64, report=False, say=str)
    told: list[str] = []
    gpaco.evaluate(run, data, say=told.append)
    images = len(list(data.glob("*/*.png")))
    assert told[0] == f"evaluated on: all of {data}, {images} images"
    trained = sum(run.metrics["counts"])
    assert told[1].startswith(f"the run was trained on {trained} of these {images} images: `gpaco evaluate")
    told.clear()
    gpaco.evaluate(run, say=told.append)
    assert told == [f"evaluated on: the test split of the run, {len(stored(run)[1])} images"]
    told.clear()
    data.rename(tmp_path / "elsewhere")
    gpaco.evaluate(run, tmp_path / "elsewhere", say=told.append)
    assert told[0] == f"evaluated on: all of {tmp_path / 'elsewhere'}, {images} images"
    assert told[1].startswith(f"the run was trained on {trained} of these {images} images")
    assert told[1].endswith(f"held-out images (once its data is back at {data})")
    with pytest.raises(UserError, match="is no longer at") as error:
        gpaco.evaluate(run)
    assert error.value.remedy == "give its new path after the run"


@pytest.mark.slow
def test_training_images_are_known_in_tables_lists_links_and_shards_and_for_every_run(tmp_path: Path) -> None:
    data, quick = tmp_path / "data", {"method": "ce", "epochs": 1, "batch_size": 64, "report": False, "say": str}
    for split in ("train", "test"):
        write_digits(data / split, only={"0", "1"})
        for k, path in enumerate(sorted((data / split).glob("*/*.png"))):
            if k % 2 == (split == "train"):
                path.unlink()
    files = sorted(data.glob("train/*/*.png"))
    lines = [(str(file.relative_to(data)), file.parent.name) for file in files]
    (data / "some.csv").write_text("path,label\n" + "".join(f"{file},{label}\n" for file, label in lines))
    (data / "some.txt").write_text("".join(f"{file} {label}\n" for file, label in lines))
    (tmp_path / "link").symlink_to(data / "train")
    with tarfile.open(tmp_path / "train.tar", "w") as shard:
        shard.add(data / "train", "train")
    run = gpaco.train(data, out=tmp_path / "run", validation=0, **quick)
    sharded = gpaco.train(tmp_path / "train.tar", out=tmp_path / "sharded", validation=0, **quick)
    other = gpaco.train("digits", out=tmp_path / "other", **quick)

    def told(runs: Any, what: Path) -> list[str]:
        said: list[str] = []
        gpaco.evaluate(runs, what, restrict=True, say=said.append)
        return [line for line in said if "was trained on" in line]

    for what in (data / "some.csv", data / "some.txt", tmp_path / "link"):
        (line,) = told(run, what)
        assert line.startswith("the run was trained on it")
    (line,) = told(sharded, tmp_path / "train.tar")
    assert line.startswith(f"the run was trained on {sum(sharded.metrics['counts'])} of these {len(files)} images")
    assert not told(run, data / "test")
    assert not told(other, data)
    twin = gpaco.train(data / "test", out=tmp_path / "twin", **quick)
    assert [line.split()[0] for line in told([run, twin], data / "test")] == [str(twin.folder)]


def stored(run: Run) -> tuple[np.ndarray, np.ndarray]:
    file = np.load(run.folder / "predictions.npz")
    return file["logits"], file["labels"]


def write_digits(folder: Path, rename: dict[str, str] | None = None, only: set[str] | None = None) -> Path:
    """The test part of the digits as a PNG file each, in a folder per class."""
    samples = read("digits").test
    for i, label in enumerate(samples.labels):
        name = samples.classes[label]
        if only is None or name in only:
            home = folder / (rename or {}).get(name, name)
            home.mkdir(parents=True, exist_ok=True)
            Image.fromarray(samples.load(i)).save(home / f"{i:04}.png")
    return folder


def write_prior(path: Path, rows: list[tuple[str, object]]) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return str(path)


@pytest.mark.slow
def test_the_figures_of_a_run_come_out_again(runs: dict[str, Run]) -> None:
    run = runs["counts"]
    again = gpaco.evaluate(run)
    logits, labels = stored(run)
    from_file = summarize(logits, labels, run.metrics["counts"], [str(c) for c in range(10)])
    assert again == from_file
    assert {key: run.metrics[key] for key in again} == again
    assert gpaco.evaluate(str(run.folder)) == gpaco.evaluate(run.folder) == again


def test_a_run_that_was_evaluated_on_validation_data_is_so_again(tmp_path: Path) -> None:
    run = gpaco.train("digits", out=tmp_path / "run", method="ce", settings=["data.evaluate_on=val"], **QUICK)
    assert run.metrics["evaluated_on"] == "val"
    assert run.metrics["selected_on"] == "last epoch"  # what is reported on chooses nothing
    assert gpaco.evaluate(run)["n"] == run.metrics["n"]
    with pytest.raises(UserError, match="but this run reports on it"):
        gpaco.evaluate(run, tune_prior=True)
    assert not (run.folder / "prior.json").exists()


@pytest.mark.slow
def test_a_run_with_a_tuned_prior_is_not_calibrated_on_top_of_it_when_it_is_evaluated_again(tmp_path: Path) -> None:
    def train() -> Run:
        given = {"method": "ce", "model": "resnet8", "weights": "none", "train": "head", "validation": 0.2}
        return gpaco.train("digits", out=tmp_path / "run", **QUICK | given | {"epochs": 10})

    gpaco.evaluate(train(), tune_prior=True)
    files = [tmp_path / "run" / name for name in ("metrics.json", "calibration.json")]
    before = [json.loads(file.read_text()) for file in files]
    assert before[0]["tuned"]["tau"] != 0
    files[0].unlink()
    train()
    after = [json.loads(file.read_text()) for file in files]
    assert after[1] == before[1]
    assert after[0]["per_class"] == before[0]["per_class"]


def prepared(data: Path, **flags: Any) -> tuple[Classification, list[str]]:
    """The task that training would begin with, and the lines printed before."""
    said: list[str] = []
    asked, given = requested(data, None, flags.pop("settings", []), flags)
    return Classification.prepare(asked, given, data / "none", torch.device("cpu"), said.append), said


def test_a_validation_part_without_a_test_part_is_reported_and_chooses_nothing(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"ant": 20, "bee": 10})
    class_folders(tmp_path / "val", {"ant": 4, "bee": 3}, seed=100)
    task, said = prepared(tmp_path)
    recipe, splits = task.recipe, task.splits
    assert (len(splits.train), splits.reported(recipe.data.evaluate_on)) == (27, ("test", splits.test))
    assert all("val" in Path(name).parts for name in splits.test.names)
    assert task.selects(recipe)  # on images held back from training
    assert "test: none given; the validation split takes its place and selects nothing" in said
    assert "metrics: on 7 test images; epoch: the best on 3 val images" in said
    task, said = prepared(tmp_path, validation=0)
    assert not task.selects(task.recipe)
    assert "metrics: on 7 test images; epoch: the last" in said
    task, said = prepared(tmp_path, settings=["data.evaluate_on=val"])
    assert not task.selects(task.recipe)
    assert "metrics: on 7 val images; epoch: the last" in said
    with pytest.raises(UserError, match="but this run reports on it"):
        prepared(tmp_path, tune_prior=True, settings=["data.evaluate_on=val"])


def test_a_part_that_is_asked_for_by_name_has_to_be_there(tmp_path: Path) -> None:
    for part in ("train", "val"):
        class_folders(tmp_path / part, {"ant": 5, "bee": 5}, seed=100 * (part == "val"))
    with pytest.raises(UserError, match="no test split to report on, only train and val") as caught:
        prepared(tmp_path, settings=["data.evaluate_on=test"])
    assert "--set data.evaluate_on=val" in caught.value.remedy
    (tmp_path / "val").rename(tmp_path / "test")
    with pytest.raises(UserError, match="no val split to report on, only train and test") as caught:
        prepared(tmp_path, validation=0, settings=["data.evaluate_on=val"])
    assert "--validation 0.1" in caught.value.remedy


def test_the_paths_of_a_list_start_from_the_root_of_the_run_or_from_another(tmp_path: Path) -> None:
    for name in ("own", "other"):
        class_folders(tmp_path / name, {"ant": 2}, seed=100 * (name == "other"))
    (tmp_path / "list.txt").write_text("ant/0.png 0\nant/1.png 0\n")
    recipe = override(Recipe(), [f"data.root={tmp_path / 'own'}"])
    for root, home in ((None, "own"), (tmp_path / "other", "other")):
        images = other_data(tmp_path / "list.txt", recipe, root).train.images
        expected = [np.asarray(Image.open(tmp_path / home / "ant" / f"{i}.png")) for i in range(2)]
        np.testing.assert_array_equal(images, expected)
    beside = tmp_path / "other" / "list.txt"  # its images are there, whatever the root of the run is
    beside.write_text("ant/0.png 0\nant/1.png 0\n")
    np.testing.assert_array_equal(other_data(beside, recipe).train.images, expected)
    gone = override(Recipe(), [f"data.root={tmp_path / 'gone'}"])
    assert len(other_data(tmp_path / "own", gone).train) == 2  # a folder has no need of it
    with pytest.raises(UserError, match="gone' is not a folder"):
        other_data(tmp_path / "list.txt", gone)


def test_a_root_of_training_holds_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(tmp_path / "images", {"ant": 10, "bee": 6})
    names = [f"{name}/{i}.png {label}" for label, (name, n) in enumerate((("ant", 10), ("bee", 6))) for i in range(n)]
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "train.txt").write_text("\n".join(names))
    monkeypatch.chdir(tmp_path)
    asked, given = requested("lists/train.txt", None, [], {"root": "images"})
    assert asked.data.root == str(tmp_path / "images")
    assert "data.root" in given
    monkeypatch.chdir("/")
    assert sum(len(part) for _, part in splits_of(asked).parts()) == 16


@pytest.mark.slow
def test_a_list_is_evaluated_with_its_root(runs: dict[str, Run], tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data")
    rows = sorted(path.relative_to(data) for path in data.glob("*/*.png"))
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{row},{row.parent}\n" for row in rows))
    assert gpaco.evaluate(runs["ce"], tmp_path / "list.csv", root=data)["n"] == len(rows)
    with pytest.raises(UserError, match="--root is for a table or list"):
        gpaco.evaluate(runs["ce"], root=data)


@pytest.mark.slow
def test_a_table_of_test_images_only_is_evaluated(runs: dict[str, Run], tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data")
    rows = sorted(path.relative_to(data) for path in data.glob("*/*.png"))[:20]
    (data / "test.csv").write_text("path,label,split\n" + "".join(f"{row},{row.parent},test\n" for row in rows))
    assert gpaco.evaluate(runs["ce"], data / "test.csv")["n"] == len(rows)


@pytest.mark.slow
def test_validation_data_choose_no_epoch_if_the_last_one_is_to_count(tmp_path: Path) -> None:
    for choice, expected in (("best", "val"), ("last", "last epoch")):
        run = gpaco.train("digits", out=tmp_path / choice, method="ce", settings=[f"train.select={choice}"], **QUICK)
        assert run.metrics["selected_on"] == expected
        assert ("val_macro" in run.history[-1]) == (choice == "best")
    assert run.metrics["evaluated_on"] == "test"


@pytest.mark.slow
def test_a_folder_of_the_same_images_gives_the_same_figures(runs: dict[str, Run], tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data")
    one, other = gpaco.evaluate(runs["ce"], data), gpaco.evaluate(runs["ce"])
    assert one["per_class"] == other["per_class"]
    assert {key: one[key] for key in ("n", "top1", "top5")} == {key: other[key] for key in ("n", "top1", "top5")}
    assert one["ece"] == pytest.approx(other["ece"])
    assert not list(data.glob("*.*"))


@pytest.mark.slow
def test_data_with_some_of_the_classes_is_numbered_by_name(runs: dict[str, Run], tmp_path: Path) -> None:
    result = gpaco.evaluate(runs["ce"], write_digits(tmp_path / "data", only={"3", "7"}))
    whole = runs["ce"].metrics["per_class"]
    assert result["absent"] == 8
    assert [result["per_class"][c]["recall"] for c in (3, 7)] == [whole[c]["recall"] for c in (3, 7)]
    assert result["per_class"][0]["recall"] is None


@pytest.mark.slow
def test_data_that_shares_some_classes_is_evaluated_on_those_and_the_others_named(
    runs: dict[str, Run], tmp_path: Path
) -> None:
    data = write_digits(tmp_path / "data", {"1": "one", "2": "two"}, only={"1", "2", "3", "7"})
    said: list[str] = []
    result = gpaco.evaluate(runs["ce"], data, say=said.append)
    alone = gpaco.evaluate(runs["ce"], write_digits(tmp_path / "alone", only={"3", "7"}))
    unknown = len(list(data.glob("one/*"))) + len(list(data.glob("two/*")))
    assert result["overlap"] == {
        "classes": 2,
        "unknown": ["one", "two"],
        "dropped_images": unknown,
        "absent": [c for c in "0123456789" if c not in "37"],
        "restricted": False,
    }
    assert {key: result[key] for key in result if key != "overlap"} == {k: alone[k] for k in alone if k != "overlap"}
    assert [row["group"] for row in result["per_class"]] == [row["group"] for row in runs["ce"].metrics["per_class"]]
    which = f"{unknown} of these {len(list(data.glob('*/*')))} images, of 2 classes that the model does not know"
    assert f"left out: {which}: 'one', 'two'" in said
    assert any(line.startswith("the data has no images of 8 classes of the model") for line in said)


@pytest.mark.slow
def test_answers_can_be_restricted_to_the_classes_of_the_data(runs: dict[str, Run], tmp_path: Path) -> None:
    result = gpaco.evaluate(runs["ce"], write_digits(tmp_path / "data", only={"3", "8"}), restrict=True)
    logits, labels = stored(runs["ce"])
    rows = np.isin(labels, [3, 8])
    right = [
        ("3", "8")[int(row[8] > row[3])] == str(label) for row, label in zip(logits[rows], labels[rows], strict=True)
    ]
    assert result["top1"] == pytest.approx(np.mean(right))
    assert result["overlap"]["restricted"] is True


@pytest.mark.slow
def test_data_without_a_known_class_is_refused_with_the_nearest_name(runs: dict[str, Run], tmp_path: Path) -> None:
    run = gpaco.train(
        write_digits(tmp_path / "data", {str(k): f"digit-{k}" for k in range(3)}, only={"0", "1", "2"}),
        out=tmp_path / "run",
        **(QUICK | {"long_tail": None, "epochs": 1, "method": "ce"}),
    )
    other = write_digits(tmp_path / "other", {"2": "dgit-2"}, only={"2"})
    with pytest.raises(
        UserError, match=r"none of the classes of the data is in the model: 'dgit-2'; did you mean 'digit-2'\?"
    ):
        gpaco.evaluate(run, other)


@pytest.mark.slow
def test_an_ensemble_is_the_mean_of_the_logits(runs: dict[str, Run]) -> None:
    pair = [runs["counts"], runs["other"]]
    mean = (stored(pair[0])[0] + stored(pair[1])[0]) / 2
    labels = stored(pair[0])[1]
    result = gpaco.evaluate(pair)
    assert result.pop("cost")["models"] == 2
    assert result == summarize(mean, labels, pair[0].metrics["counts"], [str(c) for c in range(10)])
    assert result["top1"] != gpaco.evaluate(pair[0])["top1"]


@pytest.mark.slow
def test_an_ensemble_of_runs_with_other_classes_is_refused(runs: dict[str, Run], tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data", only={"0", "1"})
    run = gpaco.train(data, out=tmp_path / "run", method="ce", epochs=1, batch_size=64, say=lambda line: None)
    with pytest.raises(UserError, match="do not have the same classes"):
        gpaco.evaluate([runs["ce"], run])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ce", "unbiased"])
def test_a_prior_shifts_logits_from_what_the_method_assumes(name: str, runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs[name]
    logits, labels = stored(run)
    counts = np.array(run.metrics["counts"], dtype=float)
    train = np.log(counts / counts.sum()).astype(np.float32)
    assumed = train if name == "ce" else np.zeros(10, np.float32)
    wanted = np.arange(1, 11) / 55
    file = write_prior(
        tmp_path / "prior.csv", [("class", "probability"), *((str(c), 2 * wanted[c]) for c in reversed(range(10)))]
    )
    for prior, target in {"uniform": 0 * train, "train": train, file: np.log(wanted)}.items():
        by_hand = logits - assumed + target
        result = gpaco.evaluate(run, prior=prior)
        expected = summarize(by_hand, labels, counts, [str(c) for c in range(10)])
        for key in ("top1", "macro", "ece"):
            assert result[key] == pytest.approx(expected[key], abs=1e-6), (prior, key)
    assert gpaco.evaluate(run, prior="train" if name == "ce" else "uniform")["top1"] == run.metrics["top1"]


def test_a_sampler_changes_what_the_logits_of_cross_entropy_assume(tmp_path: Path) -> None:
    run = gpaco.train("digits", out=tmp_path / "run", method="ce", sampler="balanced", **QUICK)
    logits, labels = stored(run)
    plain, uniform = gpaco.evaluate(run), gpaco.evaluate(run, prior="uniform")
    assert uniform["per_class"] == plain["per_class"]
    assert uniform["ece"] == pytest.approx(plain["ece"], abs=1e-6)
    counts = np.array(run.metrics["counts"], dtype=float)
    expected = summarize(logits + np.log(counts / counts.sum()), labels, counts, [str(c) for c in range(10)])
    assert gpaco.evaluate(run, prior="train")["ece"] == pytest.approx(expected["ece"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(str(c), 1) for c in range(9)], "no row for class '9'"),
        ([*((str(c), 1) for c in range(10)), ("nine", 1)], "unknown class 'nine'"),
        ([(str(c), float(c)) for c in range(10)], "a share is not above 0"),
        ([(str(c), "nan") for c in range(10)], "a share is not above 0"),
        ([*((str(c), 1) for c in range(10)), ("3", 2)], "line 11: a second row for class '3'"),
        (
            [*((str(c), 1) for c in range(9)), ("9", "much")],
            r"line 10: expected class,probability, got \['9', 'much'\]",
        ),
        ([*((str(c), 1) for c in range(9)), ("9",)], r"line 10: expected class,probability, got \['9'\]"),
    ],
    ids=["missing class", "unknown class", "share 0", "nan", "twice", "no number", "one column"],
)
def test_a_bad_prior_file_is_refused(
    rows: list[tuple[str, object]], message: str, runs: dict[str, Run], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        gpaco.evaluate(runs["ce"], prior=write_prior(tmp_path / "prior.csv", rows))
    assert "prior.csv" in caught.value.cause
    assert "\n" not in caught.value.cause


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"caf\xe9,1\n", "is not UTF-8 text"),
        (b"\x89PNG\r\n\x1a\n", "UTF-8"),
        (b"a" * 200_000 + b",1\n", "is not CSV: "),
    ],
)
def test_a_prior_file_that_is_not_csv_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "prior.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_prior(path, ("a", "b"))
    assert "\n" not in caught.value.cause


def test_names_in_a_prior_file_are_those_of_the_classes_however_accents_are_written(tmp_path: Path) -> None:
    for form, other in (("NFC", "NFD"), ("NFD", "NFC")):
        path = tmp_path / f"{form}.csv"
        path.write_text(normalize(form, "Käse,3\nb,1\n"), encoding="utf-8")
        assert np.exp(read_prior(path, (normalize(other, "Käse"), "b"))).tolist() == pytest.approx([0.75, 0.25])


@pytest.mark.slow
def test_unbiased_takes_the_log_of_the_share_of_the_center_from_the_logits(runs: dict[str, Run]) -> None:
    run = runs["counts"]
    logits, labels = stored(run)
    counts = np.array(run.metrics["counts"], dtype=np.float64)
    # DESIGN.md section 2: of the positive mass of class c, the center has 1 / (1 + alpha * expected positives of c).
    extra = 2 * 64 + 64 - 1  # two views of a batch and the memory, without the anchor itself
    share = 1 / (1 + 0.05 * extra * counts / counts.sum())
    card = gpaco.load(run).card
    loaded = card.center_share
    shift = np.float32(card.calibration.head) * np.log(np.float32(loaded))
    corrected = summarize(logits - shift, labels, counts, [str(c) for c in range(10)])
    assert gpaco.evaluate(run, unbiased=True) == corrected
    assert np.argsort(loaded).tolist() == np.argsort(share, kind="stable").tolist()
    np.testing.assert_allclose(loaded, share, rtol=0.1)


@pytest.mark.slow
def test_unbiased_changes_nothing_where_training_was_unbiased(runs: dict[str, Run]) -> None:
    assert gpaco.evaluate(runs["unbiased"], unbiased=True) == gpaco.evaluate(runs["unbiased"])


@pytest.mark.slow
def test_unbiased_is_refused_where_there_was_no_parametric_contrast(runs: dict[str, Run]) -> None:
    with pytest.raises(UserError, match="not trained with parametric contrast") as caught:
        gpaco.evaluate(runs["ce"], unbiased=True)
    assert caught.value.exit_code == 2


@pytest.mark.slow
def test_cuts_of_the_groups_are_options(runs: dict[str, Run]) -> None:
    result = gpaco.evaluate(runs["ce"], many=0, few=0)
    assert result["groups"] == {"many": 10, "medium": 0, "few": 0}
    assert result["medium"] is None
    assert result["many"] == result["macro"]


@pytest.mark.slow
def test_the_loaded_model_takes_bytes_and_floats_alike(runs: dict[str, Run]) -> None:
    model = gpaco.load(runs["ce"])
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    with torch.inference_mode():
        for kind, off in ((torch.float32, None), (torch.float64, None), (torch.bfloat16, 0.1)):
            torch.testing.assert_close(model(images), model(images.to(kind) / 255), rtol=off, atol=off)
        assert model(images).shape == (5, 10)
    assert not model.training
    assert model.classes == tuple(str(c) for c in range(10))


@pytest.mark.slow
def test_logits_do_not_depend_on_the_size_of_a_batch(runs: dict[str, Run]) -> None:
    samples = read("digits").test
    model, few = gpaco.load(runs["ce"]), np.arange(7)
    found = logits_of(model, samples.subset(few))
    np.testing.assert_allclose(found, logits_of(model, samples)[few], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_last_checkpoint_can_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = iter(range(9))
    monkeypatch.setattr(ClassificationLearner, "validate", lambda *_: {"score": -float(next(judged))})  # the first wins
    quick = {"long_tail": 20, "batch_size": 64, "epochs": 2, "report": False, "say": lambda line: None}
    run = gpaco.train("digits", out=tmp_path / "run", method="ce", **quick)
    best, last = (gpaco.load(run, which=which) for which in ("best", "last"))
    assert not torch.equal(best.model.centers.weight, last.model.centers.weight)
    assert best.card.calibration is not None
    assert last.card.calibration is None  # it is that of the best
    with pytest.raises(UserError, match="best or last"):
        gpaco.load(run, which="bset")
    shutil.rmtree(min((run.folder / "checkpoints").glob("step-*")))
    with pytest.raises(UserError, match="no longer has its best checkpoint"):
        gpaco.load(run)
    assert torch.equal(gpaco.load(run, which="last").model.centers.weight, last.model.centers.weight)
