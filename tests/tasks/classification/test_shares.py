"""Several processes: each predicts its share, and the table is whole and in order."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import run
from helpers.images import class_folders, save

import gpaco
from gpaco.training.run import Run

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("shares")
    data = class_folders(folder / "data", {"a": 12, "b": 8, "c": 5})
    return gpaco.train(
        data, out=folder / "run", model="resnet8", method="ce", epochs=1, report=False, say=lambda line: None
    )


def test_two_processes_predict_the_table_of_one(trained: Run, tmp_path: Path) -> None:
    for i in range(131):  # two rounds of 64 for each of two processes, the last one not full
        if i != 3:
            save(tmp_path / "new" / f"{i:03}.png", seed=i)
    (tmp_path / "new" / "003.png").write_bytes(b"no image")
    gpaco.predict(trained, tmp_path / "new", out=tmp_path / "one.csv")
    said = json.loads(
        run("predict", trained.folder, tmp_path / "new", "--out", tmp_path / "two.csv", "--json", ranks=2)
    )
    one, two = ((tmp_path / name).read_text().replace("\n", ",").split(",") for name in ("one.csv", "two.csv"))
    assert len(one) == len(two)
    for cell, other in zip(one, two, strict=True):  # the last digit depends on the images beside it in a batch
        assert cell == other or float(cell) == pytest.approx(float(other), abs=2e-6)
    assert [Path(row["path"]).name for row in said] == [f"{i:03}.png" for i in range(131)]
    assert [i for i, row in enumerate(said) if row["error"]] == [3]


def test_two_processes_measure_the_robustness_of_one(trained: Run, tmp_path: Path) -> None:
    words = ("robustness", trained.folder, "--corruptions", "brightness,contrast", "--severities", "1,2")
    result: dict[str, Any] = json.loads(run(*words, "--out", tmp_path / "two", "--json", ranks=2))
    alone = gpaco.robustness(
        trained, corruptions="brightness,contrast", severities="1,2", out=tmp_path / "one", say=lambda line: None
    )
    assert result == json.loads(json.dumps(alone))
    logs = [(tmp_path / name / "robustness.jsonl").read_text() for name in ("one", "two")]
    assert logs[0] == logs[1]
