"""What a dry run says about hours and memory."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpaco.api.train import _needs, dry_run
from gpaco.errors import UserError
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import PaperRow, Recipe


@pytest.mark.slow
def test_a_dry_run_takes_the_step_of_one_process_and_none_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = ["data.path=digits", "model.name=resnet8", "model.size=8", "model.weights=none", "train.part=all"]
    changes += ["method.name=ce", "views.first=plain", "views.second=", "train.epochs=3", "train.batch_size=64"]
    recipe = recipes.override(Recipe(), changes)
    command = "torchrun --nproc_per_node 4 -m gpaco train DATA --recipe NAME --out RUN"
    said: list[str] = []
    needs = dry_run(replace(recipe, source=PaperRow(command=command)), say=said.append)
    assert needs["processes"] == 4
    assert needs["steps"] == 3 * (needs["images"] // 64)
    assert re.search(r"about \d+ seconds? on 4 devices like this one, .* GB of memory each", said[-2])
    assert said[-2].endswith("(measured in a step of 16 images)")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match="--dry-run runs in one process only\nleave out torchrun"):
        dry_run(recipe)


def test_hours_are_those_of_the_measured_step_times_the_steps_of_all_epochs(tmp_path: Path) -> None:
    recipe = recipes.override(Recipe(), ["train.batch_size=10", "train.epochs=3"])
    (tmp_path / "metrics.jsonl").write_text('{"time": {"seconds": 9.0}}\n{"time": {"seconds": 2.0}}\n')
    task = SimpleNamespace(recipe=recipe, splits=SimpleNamespace(train=range(10)))  # one step
    assert _needs(tmp_path, task, recipe, images=100) == {"steps": 30, "hours": pytest.approx(30 * 2 / 3600)}  # type: ignore[arg-type]
