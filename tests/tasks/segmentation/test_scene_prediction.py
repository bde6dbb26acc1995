"""Evaluating and predicting with a trained segmenter, as functions and as commands."""

import csv
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.commands import here
from helpers.commands import run as run_command
from helpers.images import tree_hash
from helpers.scenes import COLORS, MODEL, SMALL, card, scene, scene_folder, tiny_segmenter
from PIL import Image

import gpaco
from gpaco.data.images import read_image, read_stored
from gpaco.errors import Diverged, EnvironmentProblem, UserError
from gpaco.tasks.segmentation.evaluation import evaluate_scenes, segment
from gpaco.tasks.segmentation.masks import ImageSegmenter, colored, overlaid, write_masks
from gpaco.tasks.segmentation.predictor import ScenePredictor
from gpaco.tasks.segmentation.readers.read import read_scenes

Command = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scene_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned something."""
    out = tmp_path_factory.mktemp("runs") / "run"
    options = {"task": "segmentation", "model": "upernet-test_resnet", "epochs": 25, "lr": 0.1, "settings": SMALL}
    gpaco.train(data, out=out, say=lambda line: None, **options)
    return out


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """What a command prints on standard output and standard error; it must exit with `code`."""
    return partial(here, capsys)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_run_has_its_figures_and_evaluating_again_gives_them_again(run: Path, data: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["miou"] > 0.4  # all of the most frequent class: 0.2
    assert (metrics["evaluated_on"], metrics["selected_on"]) == ("test", "val")
    again = gpaco.evaluate(run)
    assert again["confusion"] == metrics["confusion"]
    assert again["miou"] == metrics["miou"]
    alone = read_scenes(data)
    pixels = sum((alone.test.load_mask(i) != 255).sum() for i in range(3))
    assert metrics["pixels"] == pixels


@pytest.mark.slow
def test_scales_mirroring_and_windows_reach_the_network(run: Path, command: Command) -> None:
    plain = gpaco.evaluate(run)
    for words, options in (
        (["--flip"], {"flip": True}),
        (["--scales", "0.5,1,1.5"], {"scales": (0.5, 1.0, 1.5)}),
        (["--window", "32/16"], {"window": (32, 32), "stride": (16, 16)}),
    ):
        printed = json.loads(command("evaluate", run, *words, "--json")[0])
        assert printed["confusion"] == gpaco.evaluate(run, **options)["confusion"]
        assert printed["confusion"] != plain["confusion"]
        assert np.sum(printed["confusion"]) == np.sum(plain["confusion"])


@pytest.mark.slow
def test_other_cuts_move_classes_between_the_groups(run: Path, command: Command) -> None:
    out, _ = command("evaluate", run, "--many", 0.5, "--few", 0.4)
    assert "mean IoU" in out
    figures = json.loads(command("evaluate", run, "--many", 0.5, "--few", 0.4, "--json")[0])
    assert figures["groups"] == {"many": 2, "medium": 0, "few": 1}


@pytest.mark.slow
def test_other_data_is_evaluated_by_class_names(run: Path, tmp_path: Path) -> None:
    other = scene_folder(tmp_path, train=2, val=0, test=0)
    assert gpaco.evaluate(run, other)["pixels"] == 2 * (40 * 56 - 6)
    (other / "classes.txt").write_text("0\n1\ncloud\n")
    with pytest.raises(UserError, match="a class 'cloud' that the model does not know"):
        gpaco.evaluate(run, other)


@pytest.mark.slow
def test_masks_colors_and_overlays_are_written_and_a_bad_file_is_a_row(
    run: Path, data: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    out, before = tmp_path / "out", tree_hash(data)
    printed, _ = command("predict", run, data / "images" / "test", tmp_path / "broken.jpg", "--out", out)
    assert "4 files, 1 of them could not be read" in printed
    assert tree_hash(data) == before
    rows = table(out / "predictions.csv")
    assert [bool(row["error"]) for row in rows] == [False, False, False, True]
    assert not rows[3]["mask"]
    model = gpaco.load(run)
    palette = np.array(model.card.palette, np.uint8)
    for k, row in enumerate(rows[:3]):
        classes, probability = segment(model, read_image(data / "images" / "test" / f"{k}.png"))
        mask, kind = read_stored(out / "mask" / f"{k}.png")
        assert kind == "L"
        np.testing.assert_array_equal(mask, classes)
        np.testing.assert_array_equal(read_image(out / "colors" / f"{k}.png"), palette[classes])
        assert read_image(out / "overlay" / f"{k}.jpg").shape == (40, 56, 3)
        assert float(row["probability"]) == pytest.approx(probability.mean(), abs=1e-5)
    assert [row["name"] for row in table(out / "classes.csv")] == ["0", "1", "2"]
    (out / "mask" / "mine.png").write_bytes(b"corrected by hand")
    written = {path: path.read_bytes() for path in out.rglob("*.*")}
    command("predict", run, tmp_path / "broken.jpg", "--out", out, code=2)
    assert {path: path.read_bytes() for path in out.rglob("*.*")} == written, "a failed command loses nothing"
    command("predict", run, data / "images" / "test" / "0.png", "--out", out)
    for kind, name in (("mask", "0.png"), ("colors", "0.png"), ("overlay", "0.jpg")):
        left = {file.name for file in (out / kind).iterdir()} - {"mine.png"}
        assert left == {name}  # nothing of the earlier predictions
    assert (out / "mask" / "mine.png").exists()


@pytest.mark.process
@pytest.mark.slow
def test_two_processes_write_the_masks_and_the_table_of_one(run: Path, tmp_path: Path) -> None:
    for i in range(19):  # two rounds of 8 for each of two processes, the second not full
        (tmp_path / "new").mkdir(exist_ok=True)
        Image.fromarray(scene(i)[0]).save(tmp_path / "new" / f"{i:02}.png")
    gpaco.predict(run, tmp_path / "new", out=tmp_path / "one")
    run_command("predict", run, tmp_path / "new", "--out", tmp_path / "two", ranks=2)
    one, two = ((tmp_path / name / "predictions.csv").read_text() for name in ("one", "two"))
    assert two == one.replace(str(tmp_path / "one"), str(tmp_path / "two"))
    for path in (tmp_path / "one").rglob("*.png"):
        assert (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_rows_have_the_share_of_each_class_and_need_no_folder(run: Path, data: Path) -> None:
    rows = gpaco.predict(run, data / "images" / "val")
    assert len(rows) == 3
    for row in rows:
        assert sum(row["shares"].values()) == pytest.approx(1, abs=1e-5)
        assert row["mask"] is row["error"] is None


@pytest.mark.slow
def test_equal_names_of_two_folders_do_not_overwrite_each_other(run: Path, data: Path, tmp_path: Path) -> None:
    rows = gpaco.predict(run, [data / "images" / "val", data / "images" / "test"], out=tmp_path)
    assert len({row["mask"] for row in rows}) == 6
    assert (tmp_path / "mask" / "0-2.png").is_file()


@pytest.mark.slow
def test_no_two_results_have_one_name_whatever_the_images_are_called(run: Path, data: Path, tmp_path: Path) -> None:
    for name in ("a-2.png", "a.bmp", "a.png", "a.webp"):
        Image.open(data / "images" / "val" / "0.png").save(tmp_path / name)
    rows = gpaco.predict(run, tmp_path, out=tmp_path / "out")
    masks = [Path(row["mask"]).stem for row in rows]
    assert masks == ["a-2", "a", "a-3", "a-4"]
    assert len(list((tmp_path / "out" / "mask").iterdir())) == 4


@pytest.mark.slow
def test_a_fault_of_the_machine_is_a_row_with_its_error(run: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: Path) -> None:
        raise EnvironmentProblem("input/output error", "look at the disk")

    monkeypatch.setattr("gpaco.tasks.segmentation.masks.read_image", failing)
    assert [row["error"] for row in gpaco.predict(run, data / "images" / "val")] == ["input/output error"] * 3


@pytest.mark.slow
def test_the_result_says_which_part_it_is_of_and_an_empty_one_is_refused(
    run: Path, data: Path, tmp_path: Path, command: Command
) -> None:
    other = scene_folder(tmp_path / "data", train=2, val=1, test=1)
    assert gpaco.evaluate(run)["evaluated_on"] == "test"
    assert gpaco.evaluate(run, other)["evaluated_on"] == "test"
    own = data / "images"
    assert "trained on" not in command("evaluate", run, own.parent)[0]
    shutil.copytree(own.parent, tmp_path / "link", symlinks=True)
    for kind in ("images", "masks"):
        shutil.rmtree(tmp_path / "link" / kind / "test")
        (tmp_path / "link" / kind / "test").symlink_to(own.parent / kind / "train")
    assert "the run was trained on it: `gpaco evaluate" in command("evaluate", run, tmp_path / "link")[0]
    for kind in ("images", "masks"):
        (other / kind / "test" / "0.png").unlink()
    with pytest.raises(UserError, match="the test split has no images"):
        gpaco.evaluate(run, other)
    for kind in ("images", "masks"):
        (other / kind / "test").rmdir()
        shutil.rmtree(other / kind / "train")
    assert gpaco.evaluate(run, other)["evaluated_on"] == "val"  # which is all there is
    assert "evaluated on: val, 1 image" in command("evaluate", run, other)[0]
    out, errors = command("evaluate", run, other, "--json")
    assert json.loads(out)["n"] == 1
    assert "evaluated on: val" in errors


@pytest.mark.slow
def test_a_stride_needs_a_window(run: Path) -> None:
    with pytest.raises(UserError, match="needs a sliding window"):
        gpaco.evaluate(run, stride=(16, 16))


@pytest.mark.slow
def test_a_run_that_left_out_bad_pairs_goes_without_them_ever_after(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    (folder / "masks" / "test" / "1.png").write_bytes(b"")
    options = {"task": "segmentation", "model": MODEL, "epochs": 1, "settings": SMALL, "on_bad_image": "skip"}
    made = gpaco.train(folder, out=tmp_path / "run", report=False, say=lambda line: None, **options)
    again = gpaco.evaluate(made)
    assert (again["n"], again["confusion"]) == (2, made.metrics["confusion"])
    assert gpaco.robustness(made, corruptions="fog", severities="1")["n"] == 2
    said: list[str] = []
    page = gpaco.report([made], tmp_path / "report.html", say=said.append)
    assert page.read_text().count("<img") == 2 * 4
    assert not said


@pytest.mark.slow
def test_a_loaded_segmenter_gives_scores_at_the_size_of_the_images(run: Path) -> None:
    model = gpaco.load(run)
    image = torch.from_numpy(scene(5, size=(37, 50))[0]).permute(2, 0, 1)[None]
    scores = model(image)
    assert scores.shape == (1, 3, 37, 50)
    torch.testing.assert_close(model(image / 255), scores)


@pytest.mark.slow
def test_a_network_that_gives_no_numbers_is_an_error(run: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpaco.load(run)
    torch.nn.init.constant_(model.model.classifier[1].weight, float("nan"))
    with pytest.raises(Diverged, match="not finite"):
        evaluate_scenes(model, read_scenes(data).train.subset([0]))
    monkeypatch.setattr("gpaco.tasks.segmentation.prediction.load_segmenter", lambda run, device: model)
    with pytest.raises(UserError, match="not finite"):
        gpaco.predict(run, data / "images" / "test")


def test_whatever_an_archive_calls_its_images_the_results_are_below_the_output_folder(tmp_path: Path) -> None:
    images = tmp_path / "a" / "b" / "images.tar"
    images.parent.mkdir(parents=True)
    names = ["../../up.png", str(tmp_path / "root.png"), "//two.png", "c/../d.png", "e.png", "../e.png"]
    with tarfile.open(images, "w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            content = io.BytesIO()
            Image.fromarray(scene(0)[0]).save(content, "png")
            member.size = content.tell()
            archive.addfile(member, io.BytesIO(content.getvalue()))
    nothing = (np.zeros((40, 56), np.uint8), np.ones((40, 56), np.float32))
    model = ImageSegmenter("model", ("0",), ((1, 2, 3),), (1,), ("many",), lambda image: nothing)
    before = sorted(tmp_path.rglob("*"))
    rows = write_masks(model, [images], folder=tmp_path / "a" / "out")
    assert len({row["mask"] for row in rows}) == len(names)
    shutil.rmtree(tmp_path / "a" / "out")
    assert sorted(tmp_path.rglob("*")) == before


def test_colors_are_the_palettes_and_no_class_is_black() -> None:
    colors = colored(np.array([[0, 2, 255]], np.uint8), COLORS)
    assert colors.tolist() == [[COLORS[0].tolist(), COLORS[2].tolist(), [0, 0, 0]]]
    mixed = overlaid(np.full((1, 3, 3), 100, np.uint8), colors)
    assert mixed[0, 2].tolist() == [50, 50, 50]


def test_images_are_seen_at_the_size_of_training_and_answered_at_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = ScenePredictor(tiny_segmenter(), card(base_size=(40, 56))).eval()
    seen: list[tuple[int, ...]] = []
    network = predictor.model.classify
    monkeypatch.setattr(predictor.model, "classify", lambda x: (seen.append(tuple(x.shape[2:])), network(x))[1])
    classes, _ = segment(predictor, np.zeros((30, 100, 3), np.uint8), scales=(0.5, 1.0))
    assert seen == [(8, 28), (17, 56)]
    assert classes.shape == (30, 100)


@pytest.mark.slow
def test_nothing_to_predict_is_an_error(run: Path) -> None:
    with pytest.raises(UserError, match="there are no images to predict"):
        gpaco.predict(run, [])
