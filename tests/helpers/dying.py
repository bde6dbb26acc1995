"""The child that gets killed: `child` starts this file as a program, `main` at the end says what it can do."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpaco.system.files import append_jsonl, trim_jsonl
from gpaco.system.locks import lock
from gpaco.training.checkpoint import find, load, prune
from helpers import forked
from helpers.saving import save_step


@contextmanager
def child(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """This file as a program, in a process of its own; it is killed at the end."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with forked.python(__file__, *arguments, env=forked.ENVIRONMENT, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def crash_points(root: Path) -> None:
    """For every call in `save` that changes or syncs something: a process that dies just before it."""
    for kind in ("new", "same"):
        for point in range(100):
            folder = root / f"{kind}-{point:02d}"
            with patch("os.fsync"):
                save_step(folder, 1)
                save_step(folder, 2)
            process = os.fork()
            if process == 0:
                try:
                    _die_before_call(point)
                    save_step(folder, 3 if kind == "new" else 2)
                    (folder / "finished").touch()
                    os._exit(0)
                finally:
                    os._exit(1)
            status = os.waitpid(process, 0)[1]
            if not os.WIFSIGNALED(status):  # there are no more points
                assert os.WEXITSTATUS(status) == 0
                break


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


def random_kills(root: Path, rounds: int) -> None:
    """Start, resume, save and log in a loop, be killed; again and again in one folder."""
    folder, dice, found = root / "run", random.Random(0), 0  # noqa: S311
    for number in range(rounds):
        read, write = os.pipe()
        process = os.fork()
        if process == 0:
            with lock(folder):
                step = load(folder).step if find(folder) else 0
                trim_jsonl(folder / "log.jsonl", lambda row, last=step: row["step"] <= last)
                while True:
                    step += 1
                    append_jsonl(folder / "log.jsonl", {"step": step})
                    save_step(folder, step, 2000)
                    prune(folder, 2)
                    os.write(write, step.to_bytes(4, "little"))
        heard = os.read(read, 4) if number % 2 else b""  # every other time it gets at least that far
        time.sleep(dice.uniform(0, 0.1))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(write)
        heard += os.read(read, 1 << 20)
        os.close(read)
        confirmed = int.from_bytes(heard[-4:], "little") if heard else found
        found = load(folder).step if find(folder) else 0
        append_jsonl(root / "rounds.jsonl", {"confirmed": confirmed, "found": found})


def hold_lock(folder: Path) -> None:
    with lock(folder):
        helper = os.fork()
        if helper == 0:
            time.sleep(60)
            os._exit(0)
        print(helper, flush=True)
        sys.stdin.read()


def main() -> None:
    verb, folder, *rest = sys.argv[1:]
    if verb == "crash-points":
        crash_points(Path(folder))
    elif verb == "random-kills":
        random_kills(Path(folder), int(rest[0]))
    else:
        hold_lock(Path(folder))


if __name__ == "__main__":
    main()
