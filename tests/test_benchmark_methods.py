"""The benchmark of all methods: its table from a part of the results, and its limit of time."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The file benchmarks/methods.py, with results of its own."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = import_module("methods")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "methods.csv")
    return module


def test_a_part_of_the_results_is_a_table_that_names_what_is_missing(methods: Any) -> None:
    assert methods.table().count("Not measured yet.") == 2
    cell = dict.fromkeys((*methods.FIGURES, "ms1", "times1", "times64"), "1") | {"part": "heads", "few": ""}
    for own in (
        {"method": "ce", "seed": "0", "all": "0.5"},
        {"method": "ce", "seed": "1", "all": "0.6"},
        {"method": "crt", "seed": "0", "all": "0.5", "times1": "2"},
    ):
        methods.append(methods.RESULTS, cell | own)
    text = methods.table()
    assert "| `ce` | 2 | 55.0 (50.0, 60.0) | 100.0 (100.0, 100.0) |" in text
    assert "| `crt` | 1 | 50.0 |" in text
    methods.append(methods.RESULTS, cell | {"part": "scratch", "method": "ride", "all": "0.5", "times1": "2"})
    assert "| 2 / 1 |" in methods.table()
    missing = next(line for line in text.splitlines() if line.startswith("Not measured yet: "))
    assert missing.removeprefix("Not measured yet: ").rstrip(".").split(", ") == [
        name for name in methods.HEADS if name not in ("ce", "crt")
    ]
    assert text.count("Not measured yet.") == 1


def test_no_run_begins_after_the_given_time_and_data_are_found_below_a_folder(methods: Any, tmp_path: Path) -> None:
    for part in methods.TITLES:
        with pytest.raises(methods.Late):
            methods.measured(part, "nowhere", tmp_path / "out", ["ce"], 1, 0.0)
    assert not (tmp_path / "out").exists()
    assert [len(grid) for grid in methods.GRIDS.values()] == [len(methods.GRID)]
    (tmp_path / "data" / "fashion").mkdir(parents=True)
    (tmp_path / "data" / "fashion" / "train-images-idx3-ubyte.gz").touch()
    (tmp_path / "data" / "cifar-100-python.tar.gz").touch()
    assert methods.data_of("scratch", tmp_path / "data") == str(tmp_path / "data" / "fashion")
    assert methods.data_of("heads", tmp_path / "data") == str(tmp_path / "data" / "cifar-100-python.tar.gz")
    assert methods.data_of("heads", tmp_path / "data" / "fashion") == ""
