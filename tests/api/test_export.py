"""Exported files: the same logits as the run, with all metadata inside; a file that differs is not kept."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from helpers import forked
from helpers.commands import fails
from helpers.commands import run as run_command
from helpers.scenes import MODEL
from helpers.trained import QUICK, train_segmenter
from PIL import Image
from torch import Tensor

import gpaco
from gpaco.api.export import MARKS
from gpaco.data.readers.read import read
from gpaco.data.views.eval import images_as_tested
from gpaco.errors import EnvironmentProblem, Problem, UserError
from gpaco.models import backbones
from gpaco.models import export as exporting
from gpaco.system.outputs import output_file
from gpaco.tasks.classification.card import Tuned
from gpaco.tasks.classification.export import FinalLogits
from gpaco.tasks.classification.predictor import load_classifier, total_cost
from gpaco.tasks.classification.priors import final_logits
from gpaco.tasks.segmentation.network import build
from gpaco.tasks.segmentation.predictor import load_segmenter
from gpaco.training.run import Run

EXAMPLES = Path(__file__).parents[2] / "examples"


def opened(path: Path) -> tuple[Callable[[Tensor], Tensor], dict[str, Any]]:
    """What a file says to images, and about itself, as somebody finds out who has only the file."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        about = json.loads(session.get_modelmeta().custom_metadata_map["gpaco"])
        return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0]), about
    extra = {"gpaco": ""}
    program = torch.export.load(path, extra_files=extra)
    module: Callable[[Tensor], Tensor] = program.module()
    return module, json.loads(extra["gpaco"])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), [(".onnx", {}), (".pt2", {"prior": "train", "unbiased": True})])
@torch.inference_mode()
def test_a_file_answers_as_the_run_does_for_a_thousand_images_in_any_batch(
    trained: Run, kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    result = gpaco.export(trained, tmp_path / f"model{kind}", **options)
    assert [file.name for file in tmp_path.iterdir()] == [f"model{kind}"]
    assert output_file(tmp_path / f"model{kind}", MARKS).is_file()  # a second export may replace it
    answer, about = opened(tmp_path / f"model{kind}")
    assert about == result["about"]
    assert about["classes"] == [str(c) for c in range(10)]
    assert about["input"] == {"name": "images", "shape": ["N", 3, 8, 8], "dtype": "uint8", "size": [8, 8]}
    predictor = load_classifier(trained)
    samples = read("digits").train
    (images,) = images_as_tested(samples, predictor.card.view, [np.arange(1000)])
    expected = final_logits(predictor(images).numpy(), predictor.card, **options)
    for batch in (1, 7, 32):
        given = torch.cat([answer(part) for part in images[: 20 * batch if batch < 32 else 1000].split(batch)]).numpy()
        np.testing.assert_allclose(given, expected[: len(given)], atol=1e-4)
        np.testing.assert_array_equal(given.argmax(1), expected[: len(given)].argmax(1))
    assert result["difference"] < 1e-4


@pytest.mark.parametrize("prior", [None, "uniform", "train", "file"])
@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("tuned", [None, Tuned(tau=-0.5, unbiased=True, step=0, val_macro_before=0.4, val_macro=0.5)])
@torch.inference_mode()
def test_priors_and_corrections_are_inside(
    trained: Run, prior: str | None, unbiased: bool, tuned: Tuned | None, tmp_path: Path
) -> None:
    predictor = load_classifier(trained)
    predictor = type(predictor)(predictor.model, replace(predictor.card, tuned=tuned)).eval()
    if prior == "file":
        prior = str(tmp_path / "prior.csv")
        Path(prior).write_text("".join(f"{c},{c + 1}\n" for c in range(10)))
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    given = FinalLogits(predictor, prior=prior, unbiased=unbiased)(images)
    expected = final_logits(predictor(images).numpy(), predictor.card, prior=prior, unbiased=unbiased)
    np.testing.assert_allclose(given.numpy(), expected, atol=1e-5)


def run_example(name: str, *words: object, code: int = 0) -> str:
    """What an example prints where neither torch nor gpaco can be imported; it must exit with `code`."""
    without = "import runpy, sys; sys.modules['torch'] = sys.modules['gpaco'] = None; sys.argv = sys.argv[1:]; "
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    program = f"{without} runpy.run_path({str(EXAMPLES / name)!r})"
    with forked.python("-c", program, name, *words, env=forked.ENVIRONMENT, **pipes) as process:
        out, errors = process.communicate(timeout=200)
    assert process.returncode == code, errors
    return out + errors


@pytest.mark.process
def test_the_example_needs_neither_gpaco_nor_torch_and_says_what_predict_says(trained: Run, tmp_path: Path) -> None:
    printed = run_command("export", trained.folder, "--out", tmp_path / "model.onnx", "--json")
    assert json.loads(printed)["kind"] == "ONNX"  # and nothing else
    samples = read("digits").test
    for i in range(20):
        Image.fromarray(samples.load(i)).save(tmp_path / f"{i:02}.png")
    gray, turned = samples.load(1)[..., 0], Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(np.dstack([samples.load(0), 255 - gray])).save(tmp_path / "clear.png")
    Image.fromarray(gray.astype(np.uint16) * 257).save(tmp_path / "16 bits.png")
    Image.fromarray(gray.astype(np.uint16) * 16).save(tmp_path / "12 bits.png")
    Image.fromarray(samples.load(2)).save(tmp_path / "turned.png", exif=turned)
    Image.fromarray(samples.load(2)).save(tmp_path / "turned.tif", exif=turned)
    files = [*sorted(tmp_path.glob("*.png")), *sorted(tmp_path.glob("*.tif"))]
    rows = gpaco.predict(trained, files)
    told = [
        line.rpartition(": ")[2].split()
        for line in run_example("onnx_predict.py", tmp_path / "model.onnx", *files).splitlines()
    ]
    assert [word for word, _ in told] == [row["class"] for row in rows]
    shown = [float(share.strip("()")) for _, share in told]
    np.testing.assert_allclose(shown, [row["probability"] for row in rows], atol=0.02)  # Pillow resizes by itself
    (tmp_path / "bad.png").write_bytes(b"no image")
    lines = run_example("onnx_predict.py", tmp_path / "model.onnx", tmp_path / "bad.png", files[0], code=1).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"{files[0]}: {rows[0]['class']} (")
    assert lines[1].startswith(f"{tmp_path / 'bad.png'}: cannot identify image file")


@pytest.mark.extensive
@pytest.mark.slow
def test_adapters_are_merged_and_the_backbone_can_be_started_from(tmp_path: Path) -> None:
    settings = ["train.lora_rank=2"]
    options = QUICK | {"model": "test_vit", "size": 16, "train": "lora", "long_tail": 50, "settings": settings}
    run = gpaco.train("digits", out=tmp_path / "run", **options)
    gpaco.export(run, tmp_path / "model.pt2")
    gpaco.export(run, tmp_path / "backbone.safetensors")
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    predictor = load_classifier(run)
    with torch.inference_mode():
        torch.testing.assert_close(opened(tmp_path / "model.pt2")[0](images), predictor(images))
    backbone = backbones.build("test_vit", size=16, weights=str(tmp_path / "backbone.safetensors")).module.eval()
    scaled = torch.randn(3, 3, 16, 16)
    torch.testing.assert_close(backbone(scaled), predictor.model.backbone(scaled))


@pytest.mark.slow
@torch.inference_mode()
def test_a_segmenter_answers_at_the_size_asked_for_and_its_encoder_can_be_started_from(
    segmenter: Run, tmp_path: Path
) -> None:
    predictor = load_segmenter(segmenter)
    gpaco.export(segmenter, tmp_path / "asked.pt2", size=(33, 65))
    answer, about = opened(tmp_path / "asked.pt2")
    assert about["input"]["size"] == [33, 65]
    assert (about["classes"], about["palette"]) == (
        list(predictor.classes),
        [list(color) for color in predictor.card.palette],
    )
    for batch in (1, 3):
        images = torch.randint(0, 256, (batch, 3, 33, 65), dtype=torch.uint8)
        torch.testing.assert_close(answer(images), predictor(images), atol=1e-4, rtol=1e-4)
    gpaco.export(segmenter, tmp_path / "encoder.safetensors")
    encoder = build(MODEL, 3, weights=tmp_path / "encoder.safetensors").encoder.state_dict()
    for key, value in predictor.model.encoder.named_parameters():
        torch.testing.assert_close(encoder[key], value.data)


@pytest.mark.extensive
@pytest.mark.process
def test_a_segmenters_file_sees_images_as_its_run_does_and_the_example_and_predict_draw_the_same_masks(
    segmenter: Run, tmp_path: Path
) -> None:
    """The run fits images of 40 x 56 into 30 x 80, so that it sees them at 30 x 42."""
    result = gpaco.export(segmenter, tmp_path / "own.onnx")
    assert result["about"]["input"]["size"] == [30, 42]
    assert result["about"]["base_size"] == [30, 80]
    assert_the_example_draws_as_predict_does(segmenter, tmp_path)
    assert_the_example_keeps_the_shape_of_portrait_images(segmenter, tmp_path)
    with pytest.raises(UserError, match="--prior is for classifiers"):
        gpaco.predict(tmp_path / "own.onnx", tmp_path, prior="uniform")


@pytest.mark.extensive
@pytest.mark.process
def test_a_segmenters_file_of_windows_and_the_example_that_slides_them_draw_the_same_masks(tmp_path: Path) -> None:
    windows = ["segmentation.window=[20,24]", "segmentation.stride=[10,15]"]
    segmenter = train_segmenter(tmp_path / "scenes", "segmentation.base_size=[30,80]", *windows)
    result = gpaco.export(segmenter, tmp_path / "own.onnx")
    assert result["about"]["input"]["size"] == result["about"]["window"] == [20, 24]
    assert_the_example_draws_as_predict_does(segmenter, tmp_path)
    gpaco.export(segmenter, tmp_path / "small.onnx", size=(16, 8))  # smaller than the stride
    image = Path(segmenter.recipe.data.path) / "images" / "test" / "0.png"
    assert gpaco.predict(tmp_path / "small.onnx", image)[0]["error"] is None


def assert_the_example_draws_as_predict_does(segmenter: Run, folder: Path) -> None:
    image = Path(segmenter.recipe.data.path) / "images" / "test" / "0.png"
    copy = folder / "image.png"
    shutil.copy(image, copy)
    assert "image.mask.png: " in run_example("onnx_segment.py", folder / "own.onnx", copy)
    (row,) = gpaco.predict(segmenter, image, out=folder / "masks")
    expected, given = (np.asarray(Image.open(path)) for path in (row["mask"], folder / "image.mask.png"))
    assert expected.shape == given.shape == (40, 56)
    assert len(np.unique(expected)) > 1
    assert (expected == given).mean() > 0.99  # the run scales floats, the example whole numbers
    (own,) = gpaco.predict(folder / "own.onnx", image, out=folder / "by file", uncertain=1.0)
    assert (np.asarray(Image.open(own["mask"])) == given).all()
    assert own["probability"] == pytest.approx(row["probability"], abs=0.01)
    assert own["uncertain"]
    assert "uncertain" in (folder / "by file" / "predictions.csv").read_text().splitlines()[0]


def assert_the_example_keeps_the_shape_of_portrait_images(segmenter: Run, folder: Path) -> None:
    """Its masks are nearer to those of `predict` than masks of images that were stretched to the size of the model."""
    for k in range(3):
        upright = Image.open(Path(segmenter.recipe.data.path) / "images" / "test" / f"{k}.png").rotate(90, expand=True)
        upright.save(folder / f"upright{k}.png")
        upright.resize((56, 40)).save(folder / f"stretched{k}.png")
    files = [folder / f"{name}{k}.png" for name in ("upright", "stretched") for k in range(3)]
    run_example("onnx_segment.py", folder / "own.onnx", *files)
    rows = gpaco.predict(segmenter, files[:3], out=folder / "upright")
    expected = np.stack([np.asarray(Image.open(row["mask"])) for row in rows])
    masks = [Image.open(file.with_suffix(".mask.png")).resize((40, 56), Image.Resampling.NEAREST) for file in files]
    kept, stretched = np.stack(masks[:3]), np.stack(masks[3:])
    assert (kept == expected).mean() > (stretched == expected).mean() + 0.02


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("model.onx", {}, "cannot be written to 'model.onx'; did you mean '.onnx'"),
        ("nowhere/model.onnx", {}, "there is no folder"),
        ("model.safetensors", {"prior": "train"}, "a backbone has neither classes nor a size"),
        ("model.onnx", {"prior": "trian"}, "did you mean 'train'"),
        ("model.onnx", {"size": (8, 8)}, "the image size of a classifier is fixed by training"),
        ("model.onnx", {"which": "first"}, "the checkpoint must be best or last"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_written(
    trained: Run, name: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        gpaco.export(trained, tmp_path / name, **options)
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_backbone_of_narrow_experts_is_not_written(tmp_path: Path) -> None:
    run = gpaco.train("digits", out=tmp_path / "run", method="ride", epochs=1, report=False, say=lambda line: None)
    with pytest.raises(UserError, match="no other training can start from them"):
        gpaco.export(run, tmp_path / "backbone.safetensors")


@pytest.mark.slow
def test_a_segmenter_takes_no_prior_and_no_size_of_nothing(segmenter: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="for classifiers"):
        gpaco.export(segmenter, tmp_path / "model.onnx", prior="uniform")
    with pytest.raises(UserError, match="--size must be at least 1x1, got 0x8"):
        gpaco.export(segmenter, tmp_path / "model.onnx", size=(0, 8))


def test_a_file_that_differs_is_not_kept_and_the_old_one_stays(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.pt2").write_text('the old one: {"gpaco": "')
    monkeypatch.setattr(exporting, "TOLERANCE", -1)
    with pytest.raises(Problem, match=r"was not kept: its logits differ from the model by up to"):
        gpaco.export(trained, tmp_path / "model.pt2")
    assert (tmp_path / "model.pt2").read_text().startswith("the old one")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_class_that_is_never_predicted_does_not_hide_a_difference_of_the_others() -> None:
    logits = torch.tensor([[2.0, 0.0, -1e4]])  # of the last class there are no images
    with pytest.raises(Problem, match=r"differ from the model by up to 0\.3"):
        exporting.compare_logits(lambda images: logits, lambda images: logits + 0.3, (2, 2), [1])
    assert exporting.compare_logits(lambda images: logits, lambda images: logits, (2, 2), [1]) == 0


def test_without_onnxruntime_the_extra_is_named(trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install '\.\[export\]'"):
        gpaco.export(trained, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.process
def test_the_command_prints_what_it_wrote(segmenter: Run, tmp_path: Path) -> None:
    file = tmp_path / "encoder.safetensors"
    result = json.loads(run_command("export", segmenter.folder, "--out", file, "--json"))
    assert (result["kind"], result["bytes"]) == ("weights of the backbone", file.stat().st_size)
    assert "--size wide is not a size" in fails("export", segmenter.folder, "--out", file, "--size", "wide")


@pytest.mark.process
def test_an_ensemble_answers_with_the_mean_of_its_models_in_predict_and_in_a_file(trained: Run, tmp_path: Path) -> None:
    other = gpaco.train("digits", out=tmp_path / "other", method="ride", long_tail=20, **QUICK)
    runs = [trained.folder, other.folder]
    result = gpaco.export(runs, tmp_path / "both.pt2")
    answer, about = opened(tmp_path / "both.pt2")
    images = exporting.noise_images(5, (8, 8))
    with torch.no_grad():
        mean = torch.stack([load_classifier(Run(folder))(images) for folder in runs]).mean(0)
    torch.testing.assert_close(answer(images), mean, rtol=1e-4, atol=1e-4)
    assert result["difference"] < 1e-3
    alone = [total_cost([load_classifier(Run(folder))]) for folder in runs]
    both = gpaco.evaluate(runs)["cost"]
    assert about["cost"] == both
    assert both["models"] == 2
    assert both["parameters"] == sum(one["parameters"] for one in alone)
    assert both["gflops"] == pytest.approx(sum(one["gflops"] for one in alone), abs=1e-6)
    samples = read("digits").test
    for k in range(3):
        Image.fromarray(samples.load(k)).save(tmp_path / f"{k}.png")
    files = [str(tmp_path / f"{k}.png") for k in range(3)]
    rows = gpaco.predict(runs, files)
    words = json.loads(run_command("predict", *runs, *files, "--json"))
    assert [row["class"] for row in rows] == [row["class"] for row in words]
    with pytest.raises(UserError, match="an ensemble has several backbones"):
        gpaco.export(runs, tmp_path / "both.safetensors")
