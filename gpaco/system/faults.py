"""Turns library errors about the machine (disk, memory, processes) into an `EnvironmentProblem`."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EFBIG, ENAMETOOLONG, ENOSPC, EPERM, EROFS

from gpaco.errors import EnvironmentProblem, Problem, UserError

RESUMES = "the same command resumes from the last checkpoint"


@contextmanager
def explained(action: str = "", then: str = "run the same command again") -> Iterator[None]:
    """Raise errors about the machine as `EnvironmentProblem`.

    Args:
        action: what failed, such as "cannot write X"; only disk errors are then explained.
        then: what to do after the remedy.
    """
    try:
        yield
    except Problem:
        raise
    except Exception as error:
        problem = disk_problem(error, f"; then {then}" if then else "") if action else problem_of(error)
        if problem is None:
            raise
        raise type(problem)(f"{action}: {problem.cause}" if action else problem.cause, problem.remedy) from error


def disk_problem(error: Exception, then: str = "") -> Problem | None:
    """Return why the system failed to read or write, or None for any other error."""
    text = " ".join(str(error).split())
    found = re.search(r"os error (\d+)", text)  # as reported by safetensors
    number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
    if number is None or isinstance(error, BrokenPipeError):  # the reader of the output has gone
        return None
    about = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
    reason = os.strerror(number).lower()
    if number in (ENOSPC, EDQUOT, EFBIG):
        return EnvironmentProblem(f"the disk is full ({reason}{about})", f"free some space{then}")
    if number == ENAMETOOLONG:  # wrong input on any machine
        return UserError(f"{reason}{about}", "check the path, or choose a shorter one")
    if number in (EACCES, EPERM, EROFS):
        return EnvironmentProblem(f"{reason}{about}", f"change the permissions, or choose another place{then}")
    return EnvironmentProblem(f"{reason}{about}", f"check that the path exists and can be read and written{then}")


def problem_of(error: Exception) -> Problem | None:
    """Return what is wrong with the machine, or None for any other error."""
    text = " ".join(str(error).split())
    short = re.search(r"out of memory|not enough memory|can(no|')t allocate memory", text, re.IGNORECASE)
    if isinstance(error, MemoryError) or short:  # or an OSError: no memory for another process
        return EnvironmentProblem(
            f"there is not enough memory: {text[:200] or 'the system has no more'}",
            "try a smaller --batch-size, --size or model, or fewer --workers",
        )
    if problem := disk_problem(error):
        return problem
    if "shared memory" in text and "worker" in text:
        return EnvironmentProblem(
            "a process that loads images ran out of shared memory",
            f"give the machine or container more of it (/dev/shm), or use fewer --workers; {RESUMES}",
        )
    if found := re.search(r"DataLoader worker \(pid\(?s?\)? ([\d, ]+)\)", text):
        return EnvironmentProblem(
            f"a process that loads images (pid {found[1]}) was killed or crashed",
            f"the system may be short of memory: use fewer --workers; {RESUMES}",
        )
    if _is_about_processes(error, text):
        late = re.search(r"[Tt]imed out|[Tt]imeout", text)
        return EnvironmentProblem(
            "another process of this run is not responding" if late else "another process of this run has ended",
            f"look for its own error message; {RESUMES}",
        )
    return None


def _is_about_processes(error: Exception, text: str) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return False
    return isinstance(error, torch.distributed.DistError) or (
        isinstance(error, RuntimeError) and re.search(r"gloo|nccl|[Cc]onnection (closed|reset)", text) is not None
    )
