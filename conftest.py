"""The examples in the docstrings of gpaco/api run in a folder that has what they name: runs and images."""

from pathlib import Path

import pytest
from helpers.images import save
from helpers.trained import train_classifier


def _needs_runs(item: object) -> bool:
    return isinstance(item, pytest.DoctestItem) and item.name.startswith("gpaco.api.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in filter(_needs_runs, items):
        item.add_marker("extensive")


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for name in ("first", "second"):
        train_classifier(folder / "runs" / name)
    for number in range(20):
        save(folder / ("new" if number < 2 else "unlabeled") / f"{number}.png", seed=number)
    return folder


@pytest.fixture(autouse=True)
def _in_that_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if _needs_runs(request.node):
        monkeypatch.chdir(request.getfixturevalue("place"))
