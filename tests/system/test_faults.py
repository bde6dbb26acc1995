"""A loading process that dies in the middle of a run, and errors of the machine in plain words."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.commands import assert_same_run, children, run, start
from helpers.images import drawing
from PIL import Image

from gpaco.errors import EnvironmentProblem
from gpaco.system.faults import explained, problem_of

PATIENCE = 90  # seconds


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def assert_plain(errors: str) -> None:
    """The last two lines are a cause and a remedy."""
    cause, remedy = errors.rstrip().splitlines()[-2:]
    assert re.match(r"error: \S", cause), errors
    assert re.match(r"  \S.*resumes from the last checkpoint", remedy), errors
    assert "Traceback" not in errors


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    for k, (name, count) in enumerate({"cat": 60, "dog": 20, "owl": 8}.items()):
        (folder / name).mkdir()
        for i in range(count):
            Image.fromarray(drawing(80, 60, 1000 * k + i)).save(folder / name / f"{i}.jpg")
    return folder


@pytest.mark.extensive
@pytest.mark.process
def test_a_loader_killed_in_mid_run_is_exit_3_and_the_same_command_goes_on_to_the_same_bits(
    photographs: Path, tmp_path: Path
) -> None:
    words = ("train", photographs, "--model", "resnet8", "--size", 32, "--epochs", 3, "--batch-size", 4, "--workers", 2)
    run(*words, "--out", tmp_path / "undisturbed")
    process = start(*words, "--out", tmp_path / "run")
    wait_until((tmp_path / "run" / "metrics.jsonl").exists, process)
    before = set(children(process.pid))  # of the first epoch, with nothing left to do
    wait_until(lambda: set(children(process.pid)) - before, process)
    os.kill((set(children(process.pid)) - before).pop(), signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3, errors
    assert "a process that loads images (pid" in errors
    assert_plain(errors)
    run(*words, "--out", tmp_path / "run", "--workers", 1)
    assert_same_run(tmp_path / "run", tmp_path / "undisturbed")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (MemoryError(), "not enough memory"),
        (OSError(12, "Cannot allocate memory"), "not enough memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "not enough memory: CUDA"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            "not enough memory",
        ),
        (RuntimeError("DataLoader worker (pid(s) 12, 13) exited unexpectedly"), "loads images (pid 12, 13)"),
        (OSError(28, "No space left on device", "/here"), "no space left on device: /here"),
        (
            RuntimeError("Unexpected bus error encountered in worker. insufficient shared memory (shm)."),
            "shared memory",
        ),
    ],
)
def test_what_libraries_say_of_the_machine_is_said_plainly(error: Exception, cause: str) -> None:
    with pytest.raises(EnvironmentProblem) as caught, explained():
        raise error
    assert cause in caught.value.cause
    assert "\n" not in caught.value.cause + caught.value.remedy


def test_other_errors_are_none_of_the_machine() -> None:
    assert problem_of(ValueError("gloo")) is None
    with pytest.raises(KeyError), explained():
        raise KeyError("x")
