"""The lock of a run folder: one process writes to it, and a dead one does not keep it."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from helpers import forked
from helpers.saving import without_rights

from gpaco.errors import EnvironmentProblem, UserError
from gpaco.system.locks import lock

# Holds the lock of a folder, and so does a process that it forks.
HOLDER = """
import os, sys, time
from pathlib import Path
from gpaco.system.locks import lock
with lock(Path(sys.argv[1])):
    helper = os.fork()
    if helper == 0:
        time.sleep(60)
        os._exit(0)
    print(helper, flush=True)
    sys.stdin.read()
"""


@pytest.mark.process
def test_a_second_process_is_told_who_has_the_folder_and_a_dead_one_has_it_no_longer(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with forked.python("-c", HOLDER, tmp_path, env=forked.ENVIRONMENT, **pipes) as process:
        helper = int(process.stdout.readline())  # a process that the holder has forked, as loaders do
        with (
            pytest.raises(UserError, match=f"process {process.pid} on {socket.gethostname()} since 20"),
            lock(tmp_path),
        ):
            pass
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        try:
            os.kill(helper, 0)  # still there
            with lock(tmp_path), pytest.raises(UserError, match=f"process {os.getpid()} on"), lock(tmp_path / "."):
                pass
        finally:
            os.kill(helper, signal.SIGKILL)
    with lock(tmp_path):  # it was given back
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]


def test_a_folder_that_may_not_be_written_to_cannot_be_locked() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        with without_rights(), pytest.raises(EnvironmentProblem, match="permission denied"), lock(Path(name)):
            pass
        Path(name).chmod(0o755)


@pytest.mark.extensive
@pytest.mark.process
def test_gpaco_imports_without_what_windows_does_not_have() -> None:
    program = """
import os, signal, sys
del signal.SIGUSR1, os.setpgid, os.fork
sys.modules["fcntl"] = sys.modules["resource"] = None
import gpaco
gpaco.train, gpaco.evaluate, gpaco.predict
"""
    subprocess.run([sys.executable, "-c", program], check=True)
