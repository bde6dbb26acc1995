"""The page about runs that still train."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import gpaco
from gpaco.errors import UserError
from gpaco.recipes import recipe as recipes
from gpaco.training.run import Run


def training_run(folder: Path, epochs: int, *, done: int, task: str = "classification", half: bool = False) -> Run:
    """Write a run in training, the last line of its log half written if asked."""
    folder.mkdir(parents=True)
    changes = [f"train.epochs={epochs}", f"train.task={task}"]
    (folder / "recipe.toml").write_text(recipes.dumps(recipes.override(recipes.Recipe(), changes)))
    key = "val_top1" if task == "classification" else "val_miou"
    rows: list[dict[str, Any]] = [
        {"epoch": k, "loss": 3 / k, key: 0.1 * k, "val_many": 0.12 * k, "val_medium": 0.1 * k, "val_few": None}
        | {"score": 0.1 * k, "lr": 0.1 / k, "time": {"seconds": 30.0, "images_per_second": 100.0, "waiting": 0.0}}
        for k in range(1, done + 1)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text + '{"epoch": 9, "lo' * half)
    return Run(folder)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_a_run_that_still_trains_has_a_page_with_its_curves(tmp_path: Path, task: str) -> None:
    runs = [training_run(tmp_path / name, 8, done=k, task=task, half=k == 3) for name, k in (("a", 3), ("b", 5))]
    page = gpaco.report(runs, tmp_path / "report.html")
    text = page.read_text()
    assert "3 of 8 epochs" in text
    assert "about 2 minutes left" in text
    assert text.count("<polyline") == 2 + 2 * 3 + 2  # loss, validation without few, learning rate
    assert "b many" in text
    (table,) = tmp_path.glob("report*/epochs.csv")
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["epoch"]) for row in rows] == [("a", str(k)) for k in (1, 2, 3)] + [
        ("b", str(k)) for k in (1, 2, 3, 4, 5)
    ]
    assert float(rows[2]["loss"]) == 1.0


def test_seven_runs_can_be_told_apart(tmp_path: Path) -> None:
    runs = [training_run(tmp_path / f"run-{k}", 4, done=2) for k in range(12)]
    text = gpaco.report(runs, tmp_path / "report.html").read_text()
    marks = set(re.findall(r'class="mark (r\d)" d="(.*?)"', text))
    assert len(marks) == 12


def test_stages_follow_each_other_and_a_run_without_an_epoch_is_an_error(tmp_path: Path) -> None:
    run = training_run(tmp_path / "run", 4, done=0)
    with pytest.raises(UserError, match="has not finished its first epoch"):
        gpaco.report(run, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    with (run.folder / "recipe.toml").open("a") as file:
        file.write('\n[[stage]]\nname = "one"\ntrain.epochs = 3\n[[stage]]\nname = "two"\ntrain.epochs = 4\n')
    training_run(run.folder / "stage-1-one", 3, done=3)
    shutil.copy(training_run(tmp_path / "second", 4, done=2).folder / "metrics.jsonl", run.folder)
    text = gpaco.report(run.folder, tmp_path / "report.html").read_text()
    assert "5 of 7 epochs" in text
    (table,) = tmp_path.glob("report*/epochs.csv")
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["epoch"], float(row["loss"])) for row in rows] == [
        *(("1", 3.0), ("2", 1.5), ("3", 1.0)),
        *(("4", 3.0), ("5", 1.5)),
    ]
