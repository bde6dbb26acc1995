"""A kill inside a save: before every call that changes or syncs something, and at any byte of a file."""

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from helpers import forked
from helpers.saving import assert_is_step, save_step

from faults.promise import Promise, scratch
from faults.runs import dice_of
from gpaco.training.checkpoint import load, prune, restore

KINDS = ("new", "same", "only")  # a new step, one that exists, and the only one again
BYTES = 12  # kills in the middle of a file


def attempt(number: int, home: Path) -> int:
    size = dice_of("saves", number).choice([50, 500, 20_000])
    with scratch(home, number) as folder:
        forked.printed("-m", "faults.saves", folder, size, number)
        killed = sorted(path for path in folder.iterdir() if not (path / "finished").exists())
        assert len(killed) >= 30
        steps = set()
        for run in killed:
            restore(run)  # as a run that resumes
            found = load(run)
            assert found.step in ((2, 3) if run.name.startswith("new") else (2,)), run.name
            assert_is_step(found, found.step, size)
            assert not found.warnings, found.warnings
            steps.add(found.step)
            save_step(run, 4, size)  # and the run continues
            prune(run, 1)
            assert_is_step(load(run), 4, size)
            assert sorted(path.name for path in run.iterdir()) == ["latest", "step-00000004"]
        assert steps == {2, 3}
    return len(killed)


def die(folder: Path, size: int, number: int) -> None:
    """Fork a process for every point, which saves and dies there."""
    dice = dice_of("bytes", number)
    for kind in KINDS:
        for point in range(100):
            if not _dies(folder / f"{kind}-{point:02d}", kind, size, lambda point=point: _die_before_call(point)):
                break  # there are no more points
    for k in range(BYTES):
        kind = KINDS[k % len(KINDS)]
        limit = dice.randrange(150 + 12 * size)  # bytes of the largest file
        _dies(folder / f"{kind}-byte-{k:02d}", kind, size, lambda limit=limit: _die_at_byte(limit))


def _dies(folder: Path, kind: str, size: int, arm: Callable[[], None]) -> bool:
    with patch("os.fsync"):
        for step in (2,) if kind == "only" else (1, 2):
            save_step(folder, step, size)
    process = os.fork()
    if process == 0:
        try:
            arm()
            save_step(folder, 3 if kind == "new" else 2, size)
            (folder / "finished").touch()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(process, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def _die_at_byte(limit: int) -> None:
    """The system kills a process that writes beyond its limit. Python asks it not to."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def _die_before_call(point: int) -> None:
    """Dying before a sync also takes half of what was not yet synced, as a power cut would."""
    calls, fsync = iter(range(1000)), os.fsync

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if next(calls) == point:
                if real is fsync and os.path.isfile(f"/proc/self/fd/{arguments[0]}"):
                    os.truncate(f"/proc/self/fd/{arguments[0]}", os.fstat(arguments[0]).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **more)

        return call

    os.fsync, os.replace, os.mkdir, os.rmdir, os.unlink = map(  # type: ignore[assignment]
        dying, (os.fsync, os.replace, os.mkdir, os.rmdir, os.unlink)
    )


PROMISE = Promise(
    "A kill inside a save, before every system call and at any byte: there is always a whole checkpoint, and the next "
    "save works",
    attempt,
    attempts=1,
    goal=120,
)

if __name__ == "__main__":
    die(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
