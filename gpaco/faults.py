"""Faults of the machine, which libraries report in words of their own: as an `EnvironmentProblem` with a remedy."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gpaco.errors import EnvironmentProblem, Problem

_GOES_ON = "the same command goes on from the last checkpoint"


@contextmanager
def faults_explained() -> Iterator[None]:
    """Inside, a fault of the machine is raised as an `EnvironmentProblem`."""
    try:
        yield
    except Problem:
        raise
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            raise
        raise problem from error


def problem_of(error: Exception) -> EnvironmentProblem | None:
    """What is wrong with the machine, or None if the error is about something else."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError):
        about = f": {error.filename}" if error.filename else ""
        return EnvironmentProblem(
            f"{(error.strerror or text or type(error).__name__).lower()}{about}",
            "see that the disk has space and that the path may be read and written",
        )
    if isinstance(error, MemoryError) or re.search(r"out of memory|not enough memory|can't allocate memory", text):
        return EnvironmentProblem(
            f"there is not enough memory: {text[:200] or 'the system refused to give any'}",
            "try a smaller --batch-size, --size or model, or fewer --workers",
        )
    if "shared memory" in text and "worker" in text:
        return EnvironmentProblem(
            "a process that loads images ran out of shared memory",
            f"give the machine or container more of it (/dev/shm), or take fewer --workers; {_GOES_ON}",
        )
    if found := re.search(r"DataLoader worker \(pid\(?s?\)? ([\d, ]+)\)", text):
        return EnvironmentProblem(
            f"a process that loads images (pid {found[1]}) was killed or crashed",
            f"the system may be short of memory: take fewer --workers; {_GOES_ON}",
        )
    if _is_about_processes(error, text):
        late = re.search(r"[Tt]imed out|[Tt]imeout", text)
        return EnvironmentProblem(
            "another process of this run does not answer" if late else "another process of this run has ended",
            f"its own message says why, if it had time for one; {_GOES_ON}",
        )
    return None


def _is_about_processes(error: Exception, text: str) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return False
    return isinstance(error, torch.distributed.DistError) or (
        isinstance(error, RuntimeError) and re.search(r"gloo|nccl|[Cc]onnection (closed|reset)", text) is not None
    )
