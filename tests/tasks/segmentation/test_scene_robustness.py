"""Robustness of segmenters: the same corruptions and metrics as for classifiers, with 1 - mIoU for an error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.scenes import made_run, scene_folder, tiny_segmenter
from PIL import Image

import gpaco
from gpaco.cli.tables import robustness_table
from gpaco.data.corruption.corruptions import corrupt
from gpaco.errors import UserError
from gpaco.metrics.segmentation import image_iou
from gpaco.tasks.segmentation import evaluation as evaluating
from gpaco.tasks.segmentation.evaluation import segment
from gpaco.tasks.segmentation.predictor import load_segmenter
from gpaco.tasks.segmentation.splits import scene_splits
from gpaco.training.run import Run

NAMES = ("ground", "water", "sky")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("gpaco.tasks.segmentation.predictor.build_model", lambda card: tiny_segmenter())
    data = scene_folder(tmp_path / "data", train=2, val=1, test=3)
    (data / "classes.txt").write_text("\n".join(NAMES))
    return made_run(tmp_path / "run", data, NAMES)


def test_an_error_is_one_minus_the_miou_of_a_loop_over_corrupted_images(run: Run) -> None:
    result = gpaco.robustness(run, corruptions=["contrast"], severities=[5], seed=3)
    predictor, scenes = load_segmenter(run), scene_splits(run.recipe).test
    confusion = np.zeros((3, 3))
    for i in range(len(scenes)):
        image, mask = scenes.load(i)
        dim = corrupt(image, "contrast", 5, seed=3, index=i, constants="cifar")
        classes, _ = segment(predictor, dim)
        for true, found in zip(mask[mask != 255], classes[mask != 255], strict=True):
            confusion[true, found] += 1
    pixels = np.stack([np.diag(confusion), confusion.sum(1), confusion.sum(0)])
    expected = 1 - float(np.nanmean(image_iou(pixels)))
    assert result["corruptions"]["contrast"]["5"]["error"] == pytest.approx(expected)
    assert result["clean_error"] == pytest.approx(1 - run.metrics["miou"])
    assert (result["measure"], result["constants"], result["n"]) == ("1 - mIoU", "cifar", 3)
    assert result["mean_error"] is None
    assert any(note.startswith("74 of the 75 conditions are missing") for note in result["notes"])
    assert json.loads((run.folder / "robustness.json").read_text()) == result


def test_an_image_is_corrupted_alike_in_a_subset_and_in_the_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, bytes]] = []

    def watched(predictor: Any, scenes: Any, *, change: Any, **options: Any) -> dict[str, Any]:
        noisy = {name: change(scenes.load(i)[0], i).tobytes() for i, name in enumerate(scenes.names)}
        seen.append(noisy)
        return evaluating.evaluate_scenes(predictor, scenes, change=change, **options)

    monkeypatch.setattr("gpaco.tasks.segmentation.robustness.evaluate_scenes", watched)
    for subset in (None, 2, 1):
        gpaco.robustness(run, corruptions="gaussian_noise", severities="3", subset=subset)
    whole, *parts = seen[1::2]  # without those of clean images
    assert [len(part) for part in (whole, *parts)] == [3, 2, 1]
    for part in parts:
        assert part.items() <= whole.items()


def test_the_result_on_other_data_has_the_whole_name_of_its_folder(run: Run, tmp_path: Path) -> None:
    for version in ("v1.0", "v1.1"):
        data = scene_folder(tmp_path / version, train=1, val=1, test=1)
        (data / "classes.txt").write_text("\n".join(NAMES))
        gpaco.robustness(run, data, corruptions="contrast", severities="5")
    names = {path.name for path in run.folder.glob("robustness-*.json")}
    assert names == {"robustness-v1.0.json", "robustness-v1.1.json"}


def test_groups_are_always_there_and_empty_ones_are_null(run: Run) -> None:
    result = gpaco.robustness(run, corruptions="fog", severities="1")
    assert {name: one["classes"] for name, one in result["groups"].items()} == {"many": 1, "medium": 0, "few": 2}
    assert result["corruptions"]["fog"]["1"]["medium"] is None
    assert result["groups"]["medium"]["clean_error"] is None


def test_what_is_known_is_not_computed_again_and_what_changed_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = gpaco.robustness(run, corruptions="fog,contrast", severities="1")
    lines = (run.folder / "robustness.jsonl").read_text().splitlines()
    assert len(lines) == 3
    (run.folder / "robustness.jsonl").write_text("\n".join([*lines[:2], lines[2][:20]]))  # killed while writing
    said: list[str] = []
    assert gpaco.robustness(run, corruptions="fog,contrast", severities="1", say=said.append) == first
    assert "2 conditions are already in the log" in said
    gpaco.robustness(run, corruptions="fog", severities="1", seed=1)
    assert len((run.folder / "robustness.jsonl").read_text().splitlines()) == 5


def test_a_run_against_itself_has_an_mce_of_one(run: Run) -> None:
    result = gpaco.robustness(run, baseline=run.folder)
    assert result["mce"] == pytest.approx(1)
    assert result["groups"]["many"]["mce"] == pytest.approx(1)
    assert result["mean_error"] == pytest.approx(
        np.mean([one["mean"]["error"] for one in result["corruptions"].values()])
    )
    assert len(result["corruptions"]) == 15


@pytest.mark.parametrize("options", [{"prior": "uniform"}, {"restrict": True}, {"clean": "x"}, {"workers": 2}], ids=str)
def test_options_of_classifiers_are_refused(options: dict[str, Any], run: Run) -> None:
    with pytest.raises(UserError, match="for a segmenter, robustness does not support"):
        gpaco.robustness(run, **options)


def test_a_group_of_classes_that_no_mask_has_is_null_whatever_the_network_says(run: Run) -> None:
    for path in sorted((Path(run.recipe.data.path) / "masks" / "test").glob("*.png")):
        mask = np.asarray(Image.open(path)).copy()
        mask[mask > 0] = 255
        Image.fromarray(mask).save(path)
    result = gpaco.robustness(run, corruptions="fog,snow", severities="1,5")
    cells = [row[severity] for row in result["corruptions"].values() if row for severity in ("1", "5") if row[severity]]
    assert len(cells) == 4
    assert all(cell["few"] is None and cell["many"] is not None for cell in cells)


@pytest.mark.parametrize("subset", [0, -1])
def test_a_subset_of_nothing_is_refused(run: Run, subset: int) -> None:
    with pytest.raises(UserError, match="a subset needs at least 1 image"):
        gpaco.robustness(run, subset=subset, corruptions="fog", severities="1")


def test_the_table_names_the_measure(run: Run) -> None:
    assert robustness_table(gpaco.robustness(run, corruptions="fog", severities="1")).startswith("1 - mIoU in %")
