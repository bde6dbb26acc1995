"""Processes that die or stand still in the middle of a run: nobody waits for ever, and the same command goes on."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.commands import apart, assert_same_run, children, run, start, start_ranks
from helpers.images import drawing
from PIL import Image

from gpaco.errors import EnvironmentProblem
from gpaco.system.faults import explained, problem_of

QUICK = ("digits", "--long-tail", 20, "--batch-size", 32, "--set", "method.memory=64", "--set", "train.report=false")
LONG = (*QUICK, "--epochs", 200)  # nobody lets it come to its end
PATIENCE = 90  # seconds; far below the ten minutes that a collective waits for an answer


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_rank(pid: int, rank: int) -> bool:
    return f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def assert_plain(errors: str) -> None:
    """The last two lines are a cause and a remedy."""
    cause, remedy = errors.rstrip().splitlines()[-2:]
    assert re.match(r"error: \S", cause), errors
    assert re.match(r"  \S.*resumes from the last checkpoint", remedy), errors
    assert "Traceback" not in errors


@contextmanager
def two_ranks(*words: object) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes of one run without torchrun, whose exit codes can be seen; killed at the end."""
    ranks = start_ranks(*words, ranks=2)
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


@pytest.mark.process
def test_a_rank_killed_under_torchrun_ends_the_run_and_the_same_command_goes_on_to_the_same_bits(
    tmp_path: Path,
) -> None:
    words = ("train", *QUICK, "--epochs", 6)
    run(*words, "--out", tmp_path / "undisturbed", ranks=2)
    log = tmp_path / "run" / "metrics.jsonl"
    process = start(*words, "--out", tmp_path / "run", ranks=2)
    wait_until(log.exists, process)
    (second,) = [pid for pid in children(process.pid) if is_rank(pid, 1)]
    os.kill(second, signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert "error: another process of this run has ended" in errors
    assert "a bug in gpaco" not in errors
    assert len(log.read_text().splitlines()) < 6
    run(*words, "--out", tmp_path / "run", ranks=2)
    assert_same_run(tmp_path / "run", tmp_path / "undisturbed")


@pytest.mark.process
def test_the_survivor_of_two_ranks_ends_with_a_plain_message_and_exit_3(tmp_path: Path) -> None:
    with two_ranks("train", *LONG, "--out", tmp_path / "run") as (first, survivor):
        wait_until((tmp_path / "run" / "metrics.jsonl").exists, first)
        first.kill()
        _, errors = survivor.communicate(timeout=PATIENCE)
        assert survivor.returncode == 3, errors
        assert "another process of this run has ended" in errors
        assert_plain(errors)


@pytest.mark.process
def test_a_rank_that_stands_still_is_waited_for_as_long_as_asked_and_no_longer(tmp_path: Path) -> None:
    with two_ranks("train", *LONG, "--set", "train.timeout=0.1", "--out", tmp_path / "run") as ranks:
        wait_until((tmp_path / "run" / "metrics.jsonl").exists, ranks[0])
        ranks[1].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        _, errors = ranks[0].communicate(timeout=PATIENCE)
        assert ranks[0].returncode == 3, errors
        assert "another process of this run does not answer" in errors
        assert_plain(errors)
        assert time.monotonic() - began > 5


@pytest.mark.process
def test_an_error_of_one_rank_does_not_leave_the_other_waiting(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with two_ranks("train", *LONG, "--out", tmp_path) as ranks:
        errors = [process.communicate(timeout=PATIENCE)[1] for process in ranks]
        assert [process.returncode for process in ranks] == [2, 3], errors
        assert "is not empty and is not a run" in errors[0]
        assert_plain(errors[1])


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    for k, (name, count) in enumerate({"cat": 60, "dog": 20, "owl": 8}.items()):
        (folder / name).mkdir()
        for i in range(count):
            Image.fromarray(drawing(80, 60, 1000 * k + i)).save(folder / name / f"{i}.jpg")
    return folder


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


@pytest.mark.process
def test_a_signal_to_the_loaders_too_saves_all_the_same(photographs: Path, tmp_path: Path) -> None:
    words = ("--model", "resnet8", "--size", 32, "--epochs", 90, "--batch-size", 4, "--workers", 2)
    process = start("train", photographs, *words, "--out", tmp_path / "run", group=True)
    wait_until((tmp_path / "run" / "metrics.jsonl").exists, process)
    before = set(children(process.pid))

    def both_loaders_are_apart() -> bool:
        new = set(children(process.pid)) - before
        return sum(map(apart, new)) >= 2

    wait_until(both_loaders_are_apart, process)
    os.killpg(process.pid, signal.SIGTERM)  # as `timeout` does
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143, errors
    assert "stopped by SIGTERM after saving" in errors


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
