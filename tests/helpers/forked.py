"""Start Python processes from a server that has imported everything: `python` returns what `subprocess.Popen` would."""

import atexit
import json
import os
import select
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

# The children find `helpers` too.
PATHS = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "error"}
ENVIRONMENT |= {"PYTHONPATH": PATHS}
# Variables that are read when they are needed, not when a module is imported: a fork may have its own.
READ_LATE = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
READ_LATE |= {"PYTHONWARNINGS", "PYTEST_CURRENT_TEST"}
PATIENCE = 200  # seconds for the server to import everything, on a busy machine


def python(*words: object, env: dict[str, str], cold: bool = False, **options: Any) -> subprocess.Popen[str]:
    """Run `python *words` with the options of Popen: a fork, or a new process on request or if `env` needs it."""
    different = {name for name, _ in ENVIRONMENT.items() ^ env.items()} - READ_LATE
    kind = subprocess.Popen if cold or different else Fork
    return kind([sys.executable, *map(str, words)], env=env, text=True, **options)


def printed(*words: object, timeout: float = PATIENCE, env: Any = ENVIRONMENT, **options: Any) -> str:
    """Return what `python *words` prints; it must exit with 0."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    with python(*words, env=env, **pipes) as process:
        out, errors = process.communicate(timeout=timeout)
    assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{errors}"
    return out


def output_of(code: str, *words: object, cold: bool = False) -> str:
    """Return what `python -c code *words` prints."""
    return printed("-c", code, *words, cold=cold)


class Server:
    """The process that forks. It ends, and its children with it, when this process does."""

    def __init__(self, *, preload: bool = True) -> None:
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = Path(__file__).with_name("fork_server.py")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, program, str(number), *(["preload"] if preload else [])]
            self.process = subprocess.Popen(
                command, env=ENVIRONMENT, pass_fds=[number], text=True, start_new_session=True, **pipes
            )
        atexit.register(self.stop)

    def stop(self) -> None:
        self.requests.close()
        self.process.communicate()

    def death(self) -> RuntimeError:
        said, _ = self.process.communicate()
        return RuntimeError(f"the fork server ended with exit code {self.process.returncode}\n{said}")


server = cache(Server)


class Fork(subprocess.Popen[str]):
    """A Popen whose process is a fork of the server, which reports its pid and, at the end, its exit code."""

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        _, _, _, _, cwd, env, _, _, _, *pipes = rest[:15]
        session = rest[20]
        sys.audit("subprocess.Popen", args[0], args, cwd, env)  # as Popen does: conftest.py listens
        streams = [own if given == -1 else given for own, given in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = {"words": args[1:], "env": env, "cwd": os.path.abspath(cwd or "."), "session": session}
        self._answer, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(server().requests, [json.dumps(request).encode()], [*streams, theirs.fileno()])
            self.pid = self._hear(PATIENCE)
        except (BrokenPipeError, ConnectionResetError) as error:
            self._answer.close()
            raise server().death() from error
        finally:
            self._close_pipe_fds(*pipes)
        self._child_created = True

    def _hear(self, timeout: float | None) -> int:
        ready, _, _ = select.select([self._answer], [], [], timeout)
        if not ready:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        number = self._answer.recv(4)
        if not number:
            self._answer.close()
            raise server().death()
        return int.from_bytes(number, "little", signed=True)

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            self.returncode = self._hear(timeout)
            self._answer.close()
        return self.returncode

    def _internal_poll(self, *rest: Any, **more: Any) -> int | None:
        try:
            return self._wait(0)
        except subprocess.TimeoutExpired:
            return None
