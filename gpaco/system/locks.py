"""The lock of a run folder: only one process writes to it."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from gpaco.errors import UserError
from gpaco.system.faults import explained

LOCK, HOLDER = "run.lock", "in-use.txt"  # a separate file names the holder, since Windows cannot read a locked file


class InUseError(UserError):
    """Another process has the folder."""


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to a run folder. The system releases the lock when this process ends."""
    from filelock import FileLock, Timeout  # imported here, since exported files are used without it

    holder, held = folder / HOLDER, FileLock(folder / LOCK)
    with explained(f"cannot lock {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            held.acquire(timeout=0)
        except Timeout:
            who = holder.read_text() if holder.exists() else "another process"
            remedy = "wait for it, stop it, or choose another --out"
            raise InUseError(f"{folder} is in use by {who}", remedy) from None
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}")
    try:
        yield
    finally:
        holder.unlink(missing_ok=True)
        held.release()
