"""Recipes with stages, data without a test split, batches of one image, a device without float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.images import class_folders
from torch import Tensor

import gpaco
from gpaco.data.batches import shown_counts
from gpaco.data.samples import Samples, Splits
from gpaco.errors import UserError
from gpaco.recipes import recipe as recipes
from gpaco.tasks.classification import results
from gpaco.tasks.classification.defaults import resolve
from gpaco.training.run import Run

QUICK: dict[str, Any] = {"method": "ce", "epochs": 1, "batch_size": 4, "say": lambda line: None}
CPU = torch.device("cpu")

TWO_STAGES = """
[method]
name = "supcon"
[[stage]]
name = "features"
train.batch_size = 500
[[stage]]
name = "linear"
method.name = "balanced-softmax"
train.part = "head"
train.batch_size = 16
views.second = ""
"""


def test_defaults_are_filled_into_the_base_and_stages_keep_theirs_with_batches_that_the_data_can_fill() -> None:
    images = np.zeros((40, 8, 8, 3), np.uint8)
    splits = Splits(Samples(np.arange(40) % 4, tuple("abcd"), images=images), None, None, "memory")
    recipe = recipes.override(recipes.loads(TWO_STAGES), ["model.weights=none"])
    features, linear = recipes.stages(resolve(recipe, set(), splits, CPU, lambda line: None))
    assert (features.views.second, linear.views.second) == ("plain", "")
    assert (features.train.batch_size, linear.train.batch_size) == (40, 16)
    assert features.model.size == linear.model.size == 8


def test_data_without_a_test_split_is_told_from_an_unfinished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = class_folders(tmp_path / "data", {"a": 2, "b": 2})
    run = gpaco.train(data, out=tmp_path / "run", report=False, **QUICK)
    nothing = "has no metrics: the data is too small for a test split, so there was nothing to evaluate on"
    with pytest.raises(UserError, match=nothing):
        _ = run.metrics
    with pytest.raises(UserError, match=nothing):
        gpaco.report(run, tmp_path / "page.html")
    with pytest.raises(UserError, match=nothing):
        gpaco.compare(data, ["ce", "gpaco"], seeds=1, out=tmp_path / "compared", epochs=1, say=lambda line: None)
    assert not (tmp_path / "compared").exists()  # before the first training

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(results, "summarize", killed)
    larger = class_folders(tmp_path / "larger", {"a": 12, "b": 12})
    with pytest.raises(KeyboardInterrupt):
        gpaco.train(larger, out=tmp_path / "killed", report=False, **QUICK)
    with pytest.raises(UserError, match="the run has not finished"):
        _ = Run(tmp_path / "killed").metrics
    page = gpaco.report(tmp_path / "killed", tmp_path / "killed" / "report.html")
    assert "Training so far" in page.read_text()
    monkeypatch.undo()
    for _ in range(2):  # the page about the training is replaced, the one about the results is not
        gpaco.train(larger, out=tmp_path / "killed", **QUICK)
        assert "Training so far" not in page.read_text()
        page.write_text(page.read_text() + "<!-- kept -->")
    assert page.read_text().count("kept") == 2


def test_a_projector_with_batch_norm_refuses_single_images(tmp_path: Path) -> None:
    data = class_folders(tmp_path / "data", {"a": 12, "b": 12})
    settings = ["train.accumulate=2", "model.projector=paco"]
    with pytest.raises(UserError, match="needs at least two images at a time") as error:
        gpaco.train(data, out=tmp_path / "run", **QUICK | {"method": "gpaco", "batch_size": 2}, settings=settings)
    assert error.value.remedy.startswith("--batch-size 4 or more")
    gpaco.train(data, out=tmp_path / "run", report=False, **QUICK | {"batch_size": 2}, settings=settings)


def test_a_class_that_is_never_shown_counts_as_one_image_for_every_sampler() -> None:
    counts = np.array([90, 9, 1, 0])
    for sampler in ("shuffle", "balanced", "sqrt"):
        shown = shown_counts(counts, sampler)
        assert shown[3] == 1, sampler
        assert shown[:3].sum() == pytest.approx(100)
    assert shown_counts(np.array([1, 1, 0]), "balanced").tolist() == [1, 1, 1]


@pytest.mark.slow
def test_no_float64_goes_to_a_device_in_a_whole_training_and_an_analysis_that_fails_costs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[Tensor] = []
    real = Tensor.to

    def to(self: Tensor, *args: Any, **more: Any) -> Tensor:
        if self.dtype == torch.float64 and any(isinstance(word, torch.device) for word in (*args, *more.values())):
            moved.append(self)
        return real(self, *args, **more)

    monkeypatch.setattr(Tensor, "to", to)
    said: list[str] = []
    settings = ["method.memory=64", "model.hidden=16", "train.cached_views=2", "method.label_smoothing=0.1"]
    settings.append("model.name=resnet8")
    options: dict[str, Any] = {"epochs": 1, "long_tail": 50, "train": "head", "settings": settings, "say": said.append}
    run = gpaco.train("digits", out=tmp_path / "run", **options)
    assert not moved
    assert (run.folder / "analysis.json").is_file()

    def broken(*_: Any) -> None:
        raise TypeError("this device has no float64")

    monkeypatch.setattr(results, "analyze", broken)
    run = gpaco.train("digits", out=tmp_path / "other", **options)
    assert "no analysis.json: TypeError: this device has no float64" in said
    assert (run.folder / "report.html").is_file()
