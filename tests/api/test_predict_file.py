"""Prediction with an exported file: the rows of the run, without torch."""

import csv
import json
import signal
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import forked
from helpers.commands import ENVIRONMENT, fails
from helpers.commands import run as run_command
from helpers.serving import Server
from helpers.trained import QUICK
from PIL import Image
from pyarrow import parquet

import gpaco
from gpaco.data.readers.read import read
from gpaco.data.views.tested import resized_by_pillow
from gpaco.data.views.views import resized_whole
from gpaco.errors import UserError
from gpaco.models.onnx_file import open_onnx
from gpaco.training.run import Run

# What `pip install --no-deps gpaco numpy pillow opencv-python-headless typer onnxruntime` does not bring.
ABSENT = ("torch", "timm", "scipy", "sklearn", "jinja2", "safetensors", "filelock", "huggingface_hub", "pyarrow")
WITHOUT = (
    f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r})); from gpaco.cli.main import main; main(sys.argv[1:])"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with digits, many larger than the model takes, and a broken file."""
    folder = tmp_path_factory.mktemp("images")
    samples = read("digits").test
    for i in range(30):
        image = Image.fromarray(samples.load(i))
        image = image.resize((8 + 3 * i, 8 + 5 * (i % 7))) if i % 3 else image
        image.save(folder / f"{i:02}.{'png' if i % 2 else 'jpg'}")
    (folder / "broken.png").write_bytes(b"no image")
    return folder


def without_torch(*words: object, cwd: Path) -> str:
    return forked.printed("-c", WITHOUT, *words, cold=True, cwd=cwd)


@pytest.mark.process
def test_a_file_predicts_what_its_run_does_without_torch(
    trained: Run, exported: Path, files: Path, tmp_path: Path
) -> None:
    rows = json.loads(without_torch("predict", exported, files, "--json", cwd=tmp_path))
    expected = gpaco.predict(trained, files)
    assert not list(tmp_path.iterdir())
    assert [row["path"] for row in rows] == [row["path"] for row in expected]
    for row, own in zip(rows, expected, strict=True):
        assert (row["error"], row["class"], row["group"], row["train"]) == tuple(
            own[key] for key in ("error", "class", "group", "train")
        )
        assert [name for name, _ in row["top"]][:2] == [name for name, _ in own["top"]][:2]
        assert row["probability"] == pytest.approx(own["probability"], abs=0.01)


def test_pillow_resizes_as_torch_does_within_a_gray_level() -> None:
    image = np.random.default_rng(0).integers(0, 256, (61, 47, 3), np.uint8)
    for size in ((20, 31), (61, 20), (80, 99)):
        for kind in ("bilinear", "bicubic"):
            ours, theirs = (resize(image, *size, kind).astype(int) for resize in (resized_by_pillow, resized_whole))
            assert abs(ours - theirs).max() <= 1


@pytest.mark.slow
def test_a_prior_changes_the_answers_of_a_file_as_those_of_its_run(
    trained: Run, exported: Path, files: Path, tmp_path: Path
) -> None:
    shares = tmp_path / "shares.csv"
    shares.write_text("".join(f"{c},{c + 1}\n" for c in range(10)))
    for prior in ("uniform", "train", str(shares)):
        rows, expected = (gpaco.predict(model, files, prior=prior) for model in (exported, trained))
        given, own = ([row["probability"] or 0 for row in found] for found in (rows, expected))
        np.testing.assert_allclose(given, own, atol=0.01)
    shares.write_text("0,1\nzero,2\n")
    with pytest.raises(UserError, match="unknown class 'zero'"):
        gpaco.predict(exported, files, prior=str(shares))


@pytest.mark.slow
def test_a_prior_changes_the_answers_of_a_file_of_runs_that_assume_different_ones_as_those_of_the_runs(
    files: Path, tmp_path: Path
) -> None:
    methods = ("ce", "balanced-softmax")
    runs = [gpaco.train("digits", out=tmp_path / name, method=name, long_tail=20, **QUICK).folder for name in methods]
    file = tmp_path / "both.onnx"
    gpaco.export(runs, file)
    for prior in ("uniform", "train"):
        rows, expected = (gpaco.predict(model, files, prior=prior) for model in (file, runs))
        given, own = ([row["probability"] or 0 for row in found] for found in (rows, expected))
        np.testing.assert_allclose(given, own, atol=0.01)
    assert open_onnx(file).about["prior"] == "train and uniform"


def test_tables_have_the_same_rows_in_every_format_and_uncertain_ones_are_marked(
    trained: Run, exported: Path, files: Path, tmp_path: Path
) -> None:
    cut = float(np.median([row["probability"] for row in gpaco.predict(trained, files) if not row["error"]]))
    rows = gpaco.predict(trained, files, out=tmp_path / "rows.jsonl", uncertain=cut)
    for row in rows:
        assert row["uncertain"] is (row["error"] is not None or row["probability"] < cut)
    assert {row["uncertain"] for row in rows} == {True, False}
    written = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert written == json.loads(json.dumps([row | {"written_by": "gpaco predict"} for row in rows]))
    for source in (trained, exported):
        gpaco.predict(source, files, out=tmp_path / "rows.parquet", uncertain=cut)
        gpaco.predict(source, files, out=tmp_path / "rows.csv", uncertain=cut)
        table = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
        with (tmp_path / "rows.csv").open(newline="") as file:
            listed = list(csv.DictReader(file))
        assert [{key: "" if value is None else str(value) for key, value in row.items()} for row in table] == listed
    gpaco.predict(trained, files, out=tmp_path / "rows.csv")
    assert "uncertain" not in (tmp_path / "rows.csv").read_text()


def test_no_classes_and_empty_batches_are_refused(trained: Run, exported: Path, files: Path) -> None:
    for model in (trained, exported):
        for name in ("top", "batch_size"):
            with pytest.raises(UserError, match=f"{name} must be at least 1, got 0"):
                gpaco.predict(model, files, **{name: 0})


@pytest.mark.process
def test_what_cannot_be_predicted_is_an_error_with_a_remedy(exported: Path, files: Path, tmp_path: Path) -> None:
    model = exported
    (tmp_path / "text.onnx").write_text("no model")
    graph = onnx.load(model)
    about = json.loads(graph.metadata_props[0].value)
    for name, change in (
        ("bare.onnx", None),
        ("classless.onnx", {"task": "classification"}),
        ("shareless.onnx", {key: value for key, value in about.items() if key != "shares"}),
        ("sizeless.onnx", about | {"input": {}}),
        ("colorless.onnx", about | {"task": "segmentation"}),
        ("other.onnx", about | {"task": "detection"}),
        ("list.onnx", [about]),
    ):
        del graph.metadata_props[:]
        if change:
            graph.metadata_props.add(key="gpaco", value=json.dumps(change))
        onnx.save(graph, tmp_path / name)
    for path, options, message in (
        (tmp_path / "none.onnx", {}, "there is no file"),
        (tmp_path / "text.onnx", {}, "is not an ONNX model"),
        (tmp_path / "bare.onnx", {}, "was not written by gpaco: it has no metadata"),
        (tmp_path / "classless.onnx", {}, "has no classes in its metadata"),
        (tmp_path / "shareless.onnx", {}, "has no shares in its metadata"),
        (tmp_path / "sizeless.onnx", {}, "has no size of the input in its metadata"),
        (tmp_path / "colorless.onnx", {}, "has no palette in its metadata"),
        (tmp_path / "other.onnx", {}, "is for the task 'detection'"),
        (tmp_path / "list.onnx", {}, "has damaged metadata"),
        (model, {"unbiased": True}, "an exported file does not support --unbiased"),
        (model, {"device": "cpu"}, "an exported file does not support --device"),
        (model, {"flip": True}, "an exported file does not support --flip"),
        (model, {"uncertain": 70.0}, "70 is not a probability"),
        (model, {"prior": "trian"}, "did you mean 'train'"),
        (model, {"out": tmp_path / "rows.txt"}, "cannot be written to 'rows.txt'"),
    ):
        with pytest.raises(UserError) as caught:
            gpaco.predict(path, files, **options)
        assert message in caught.value.cause
        assert caught.value.remedy
    assert "has no classes in its metadata" in fails("predict", tmp_path / "classless.onnx", files)
    assert "is a model, not an image" in fails("predict", model, model, files, "--json")
    torchrun = {"WORLD_SIZE": "2", "RANK": "1"}
    assert "start it without torchrun" in fails("predict", model, files, "--json", more=torchrun)
    assert "start it without torchrun" in fails("serve", model, "--port", 0, more=torchrun)


@pytest.mark.process
def test_a_file_is_served_without_torch_and_what_else_is_missing_is_named(exported: Path, tmp_path: Path) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT, "cwd": tmp_path}
    words = ("serve", exported, "--port", 0)
    with forked.python("-c", WITHOUT, *words, cold=True, **pipes) as process:
        _, errors = process.communicate(timeout=200)
    assert process.returncode == 3
    assert "the server needs jinja2, which is not installed" in errors
    with forked.python("-c", WITHOUT.replace("'jinja2', ", ""), *words, cold=True, **pipes) as process:
        port = process.stdout.readline().split(":")[2].split()[0]
        assert Server(process, "127.0.0.1", int(port)).ask("/health").status == 200
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert "all requests were answered" in out


@pytest.mark.slow
def test_uncertain_is_a_probability_for_a_segmenter_too(segmenter: Run, files: Path) -> None:
    with pytest.raises(UserError, match="70 is not a probability"):
        gpaco.predict(segmenter, files, uncertain=70.0)


@pytest.mark.process
def test_the_command_says_how_many_rows_to_look_at(exported: Path, files: Path, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    said = run_command("predict", exported, files, "--out", table, "--uncertain", "0.7")
    look = sum("True" in line.split(",") for line in table.read_text().splitlines())
    assert f"31 files, 1 of them could not be read, {look} to review (probability below 0.7): {table}" in said
