"""A loading process that dies in the middle of a run, and errors of the machine in plain words."""

import os
import signal
from pathlib import Path

import pytest
from faults.runs import PATIENCE, photos, plain_error, wait_until
from helpers.commands import assert_same_run, children, run, start

from gpaco.errors import EnvironmentProblem
from gpaco.system.faults import explained, problem_of


@pytest.mark.extensive
@pytest.mark.process
def test_a_loader_killed_in_mid_run_is_exit_3_and_the_same_command_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    sizes = ("--model", "resnet8", "--size", 32, "--epochs", 3, "--batch-size", 4, "--workers", 2)
    words = ("train", photos(tmp_path), *sizes)
    run(*words, "--out", tmp_path / "undisturbed")
    process = start(*words, "--out", tmp_path / "run")
    wait_until((tmp_path / "run" / "metrics.jsonl").exists, process)
    before = set(children(process.pid))  # of the first epoch, with nothing left to do
    wait_until(lambda: set(children(process.pid)) - before, process)
    os.kill((set(children(process.pid)) - before).pop(), signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE)
    plain_error(errors, process.returncode, 3, "a process that loads images (pid")
    assert "resumes from the last checkpoint" in errors
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
