"""Settings for all tests: the same examples on every run, no time limit per example, no process without a marker.

Tests have no network access beyond this machine: Python sockets are refused here and in processes of the fork server.
"""

import ctypes
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import forked, no_network
from helpers.commands import here
from helpers.trained import train_classifier, train_segmenter
from hypothesis import settings

import gpaco
from gpaco.training.run import Run

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")

_running: list[pytest.Item] = []


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _give_memory_back() -> Iterator[None]:
    """Return freed memory to the system: glibc keeps gigabytes after tests with large networks."""
    yield
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the server import while the first tests run."""
    if not session.config.option.collectonly and any(item.get_closest_marker("process") for item in session.items):
        forked.server()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.remove(item)


def _refuse_unmarked(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail a test that starts Python or a browser without the marker, or `make test-fast` would run it."""
    if event == "subprocess.Popen" and _running:
        program = str(arguments[0] or arguments[1][0])
        needed = "process" if program == sys.executable else "browser" if "playwright" in program else None
        if needed and not _running[-1].get_closest_marker(needed):
            raise RuntimeError(f"{_running[-1].name} starts {program}: mark it with @pytest.mark.{needed}")


sys.addaudithook(_refuse_unmarked)
no_network.block()


# Models for the tests of what is done with them, trained once in each process.


@pytest.fixture
def prints(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints on standard output, in this process; it must exit with `code`."""
    return lambda *words, code=0: here(capsys, *words, code=code)[0]


@pytest.fixture
def refuses(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The cause and the remedy, one line each, and nothing else; exit 2."""

    def command(*words: object) -> str:
        _, errors = here(capsys, *words, code=2)
        assert re.fullmatch(r"error: \S.*\n  \S.*\n", errors), errors
        return errors

    return command


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_classifier(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="session")
def segmenter(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_segmenter(tmp_path_factory.mktemp("scenes"), "segmentation.base_size=[30,80]")


@pytest.fixture(scope="session")
def exported(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("exported") / "model.onnx"
    gpaco.export(trained, file)
    return file
