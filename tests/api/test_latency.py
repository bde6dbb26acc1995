"""Milliseconds per image, parameters and operations of a model."""

import torch
from torch import nn

from gpaco.api.latency import table
from gpaco.tasks.latency import measure


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
