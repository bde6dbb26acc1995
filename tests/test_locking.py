"""The lock of a run folder: one process writes to it, and a dead one does not keep it."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from dying import child
from saving import without_rights

from gpaco.errors import EnvironmentProblem, UserError
from gpaco.locking import lock


def test_a_second_process_is_told_who_has_the_folder_and_a_dead_one_has_it_no_longer(tmp_path: Path) -> None:
    with child("hold-lock", tmp_path) as process:
        assert process.stdout is not None
        helper = int(process.stdout.readline())  # a process that the holder has forked, as loaders do
        with pytest.raises(UserError) as error, lock(tmp_path):
            pass
        assert error.value.exit_code == 2
        assert f"process {process.pid} on {socket.gethostname()} since 20" in error.value.cause
        assert "--out" in error.value.remedy
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        try:
            os.kill(helper, 0)  # still there
            with lock(tmp_path):
                assert json.loads((tmp_path / "run.lock").read_text())["pid"] == os.getpid()
        finally:
            os.kill(helper, signal.SIGKILL)


def can_be_locked_elsewhere(folder: Path) -> bool:
    """Whether another process could take the system's lock."""
    program = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", program, str(folder / "run.lock")]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def test_a_lock_can_be_taken_again_after_it_was_given_back_but_not_twice_at_once(tmp_path: Path) -> None:
    for _ in range(3):
        with lock(tmp_path / "run"):
            with pytest.raises(UserError, match=f"in use by process {os.getpid()}"), lock(tmp_path / "." / "run"):
                pass
            assert not can_be_locked_elsewhere(tmp_path / "run")
            with lock(tmp_path / "another"):
                pass
        assert can_be_locked_elsewhere(tmp_path / "run")
    with pytest.raises(ZeroDivisionError), lock(tmp_path / "run"):
        _ = 1 / 0
    with lock(tmp_path / "run"):
        pass


def test_on_a_file_system_without_locks_the_process_written_in_the_file_counts(tmp_path: Path) -> None:
    def holder(**change: Any) -> None:
        who = {"host": socket.gethostname(), "pid": os.getppid(), "since": "yesterday"} | change
        (tmp_path / "run.lock").write_text(json.dumps(who))

    gone = subprocess.Popen(["true"])
    gone.wait()
    with patch.object(fcntl, "lockf", side_effect=OSError(errno.ENOLCK, "No locks available")):
        for who in ({}, {"host": "another"}):
            holder(**who)
            with pytest.raises(UserError, match=r"in use by process .* since yesterday"), lock(tmp_path):
                pass
        for who in ({"pid": gone.pid}, {"pid": 10**30}):
            holder(**who)
            with lock(tmp_path):
                pass
        for content in ("", "{}", "[" * 9999, '{"host": 3, "pid": "x", "since": 1}'):
            (tmp_path / "run.lock").write_text(content)
            with lock(tmp_path):
                pass


def test_a_folder_that_may_not_be_written_to_cannot_be_locked() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        with without_rights(), pytest.raises(EnvironmentProblem, match="no permission to write") as error:
            lock(Path(name)).__enter__()
        assert error.value.exit_code == 3
        Path(name).chmod(0o755)
