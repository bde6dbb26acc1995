"""The lock of a run folder: one process writes to it."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from errno import EACCES, EAGAIN
from pathlib import Path
from typing import Any

from gpaco.errors import UserError
from gpaco.files import explained

_held: dict[Path, dict[str, Any]] = {}


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep all other processes from writing to a run folder.

    The system's own lock on `run.lock` goes when its process does, however it ends, and also when that process closes
    the file for any reason: do not read it while holding it. The file says who has it. Where the file system has no
    locks, who is written there counts as long as that process lives.
    """
    path = folder.resolve() / "run.lock"
    with explained(f"cannot lock {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        if path in _held:  # the system would allow it: its locks are between processes
            raise _in_use(folder, _held[path])
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with explained(f"cannot lock {folder}"):
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = _holder(path)
                if error.errno in (EACCES, EAGAIN) or _may_live(holder):
                    raise _in_use(folder, holder) from None
            since = datetime.now().astimezone().isoformat(" ", "seconds")
            holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(holder).encode())
        _held[path] = holder
        try:
            yield
        finally:
            del _held[path]
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _in_use(folder: Path, holder: Mapping[str, Any]) -> UserError:
    who = f"process {holder['pid']} on {holder['host']} since {holder['since']}" if holder else "another process"
    return UserError(
        f"{folder} is in use by {who}",
        "wait for it, stop it, or choose another --out; if it is gone for sure, delete run.lock there",
    )


def _may_live(holder: Mapping[str, Any]) -> bool:
    if not holder or holder["host"] != socket.gethostname():
        return bool(holder)  # of another machine we cannot know
    try:
        os.kill(holder["pid"], 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is somebody else's
        return True
    return True


def _holder(path: Path) -> dict[str, Any]:
    try:
        holder = json.loads(path.read_text())
        return {"host": str(holder["host"]), "pid": int(holder["pid"]), "since": str(holder["since"])}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
