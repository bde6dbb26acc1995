"""Settings for all tests: the same examples on every run, no time limit per example, markers for what a test starts."""

import ctypes
import inspect
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
import torch
from helpers import forked
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")

HERE = Path(__file__).parent
STARTERS = {"subprocess": "process", "playwright": "browser"}  # packages and the marker of who calls them
_running: list[pytest.Item] = []


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _give_memory_back() -> Iterator[None]:
    """Return freed memory to the system: glibc keeps gigabytes of what the large networks of a few tests took."""
    yield
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start a process or a browser, themselves, through a fixture or through a helper."""
    known: dict[Any, set[str]] = {}
    for item in items:
        if isinstance(item, pytest.Function):
            fixtures = [last.func for *_, last in item._fixtureinfo.name2fixturedefs.values()]
            arguments = item.callspec.params.values() if hasattr(item, "callspec") else ()
            for name in set().union(*(_starts(part, known) for part in (item.function, *fixtures, *arguments))):
                item.add_marker(name)


def _starts(thing: Any, known: dict[Any, set[str]]) -> set[str]:
    """Return the markers for what a function or class may start, itself or through others of the tests."""
    if isinstance(thing, partial):
        thing = thing.func
    if not isinstance(thing, FunctionType | type):
        return set()
    thing = inspect.unwrap(thing)
    package = thing.__module__.split(".")[0]
    if package in STARTERS:
        return {STARTERS[package]}
    file = getattr(sys.modules.get(thing.__module__), "__file__", None)
    if file is None or HERE not in Path(file).parents:
        return set()
    if thing not in known:
        known[thing] = set()
        named = vars(thing).values() if isinstance(thing, type) else _named(thing)
        known[thing] = set().union(*(_starts(part, known) for part in named))
    return known[thing]


def _named(function: FunctionType) -> list[Any]:
    """Return the globals that a function names, and what it may mean by `module.name`."""
    names = _names(function.__code__)
    spaces = [function.__globals__]
    spaces += [vars(value) for name in names if isinstance(value := spaces[0].get(name), ModuleType)]
    return [space[name] for space in spaces for name in names if name in space]


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(part) for part in code.co_consts if isinstance(part, CodeType)))


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
