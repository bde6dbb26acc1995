"""Milliseconds per image, parameters and operations of a model."""

import json
from pathlib import Path

import pytest
import torch
from helpers.scenes import card, made_run, scene_folder, tiny_segmenter
from torch import nn

import gpaco
from gpaco.api.latency import stored, table
from gpaco.tasks.cost import FILE, cost, measure


def test_operations_and_parameters_are_counted_and_times_have_a_spread() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    found = measure(model, 16, 20, seconds=0.01)
    assert found["parameters"] == 3 * 8 * 9 + 8 * 5 + 5
    assert found["flops"] == 2 * (16 * 20 * 3 * 8 * 9 + 8 * 5)
    for batch in ("1", "64"):
        times = found["batches"][batch]
        assert times["repetitions"] >= 5
        assert 0 < times["low"] <= times["median"] <= times["high"]
    assert not model.training
    assert found["threads"] == torch.get_num_threads()
    row = {"run": "runs/a", **found}
    _, line, remark = table([row]).splitlines()
    assert line.startswith("runs/a ")
    assert f"{found['parameters']:,}" in line
    assert "Medians on cpu" in remark


def test_a_segmenter_is_measured_at_its_fitted_size_without_layers_for_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpaco.tasks.segmentation.predictor.build_model", lambda card: tiny_segmenter())
    monkeypatch.setattr("helpers.scenes.card", lambda names: card(names, image_size=(4000, 5600), base_size=(400, 700)))
    run = made_run(tmp_path / "run", scene_folder(tmp_path / "data", train=1, val=1, test=1), ("a", "b", "c"))
    (row,) = gpaco.latency(run, device="cpu", seconds=0.01)
    assert (row["height"], row["width"]) == (400, 560)
    assert row["batches"]["1"]["median"] > 0
    assert row["batches"]["64"] is None  # 14 million pixels
    assert row["parameters"] == 3 * 6 * 9 + 6 + 2 * 6 + 6 * 8 * 9 + 8 + 8 * 3 + 3  # encoder and class scores
    assert " none " in table([row])
    assert stored(run, "cpu") == row
    said: list[str] = []
    twin = made_run(tmp_path / "twin", tmp_path / "data", ("a", "b", "c"))
    again, second = gpaco.latency([run, twin], device="cpu", seconds=0.01, say=said.append)
    assert second == again | {"run": str(twin.folder)}
    assert len(said) == 1, "the same network is not measured twice"
    for elsewhere in ({"device": "A100"}, {"threads": 99}):
        (run.folder / FILE).write_text(json.dumps(row | elsewhere))
        assert stored(run, "cpu") is None, elsewhere
    (run.folder / FILE).unlink()
    (run.folder / FILE).mkdir()  # as in a folder that may only be read
    (row,) = gpaco.latency(run, device="cpu", seconds=0.01, say=said.append)
    assert row["parameters"] == second["parameters"]
    assert said[-1].startswith("not stored in the run: ")


def test_parameters_and_operations_are_those_of_an_answer() -> None:
    model = nn.Sequential()
    model.add_module("first", nn.Conv2d(3, 4, 1, bias=False))
    used = cost(model, 8, 8)
    assert used == (12, 2 * 12 * 64)
    model.first.projector = nn.Linear(4, 4)
    assert cost(model, 8, 8) == used
