"""The fork server of the tests: its processes are like new ones."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import assert_same_run, run
from helpers.forked import ENVIRONMENT, Fork, Server, python

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
STATE = """
import json, os, random, signal, sys, threading, warnings
import numpy, torch
print(json.dumps({
    "argv": sys.argv, "path": sys.path[:2], "name": __name__, "folder": os.getcwd(), "environment": dict(os.environ),
    "threads": [threading.active_count(), torch.get_num_threads(), len(os.listdir("/proc/self/task"))],
    "main": threading.current_thread() is threading.main_thread(),
    "options": sys.warnoptions, "files": sorted(os.listdir("/proc/self/fd")), "input": sys.stdin.read(),
    "handlers": [str(signal.getsignal(k)) for k in signal.Signals], "terminal": sys.stdout.isatty(),
    "streams": [sys.stdin.encoding, sys.stdout.encoding, sys.stdout.line_buffering, sys.stderr.line_buffering],
}))
"""


@pytest.mark.extensive
@pytest.mark.process
@pytest.mark.parametrize("group", [False, True])
def test_a_fork_finds_what_a_new_process_finds(group: bool, tmp_path: Path) -> None:
    states = []
    for cold in (False, True):
        process = python("-c", STATE, "a b", cold=cold, env=ENVIRONMENT, cwd=tmp_path, start_new_session=group, **PIPES)
        assert isinstance(process, Fork) != cold
        assert (os.getsid(process.pid) == process.pid) == group
        out, errors = process.communicate("typed", timeout=100)
        assert (process.returncode, errors) == (0, "")
        states.append(json.loads(out))
    assert states[0]["input"] == "typed"
    assert states[0] == states[1]


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("pass", 0),
        ("import sys; sys.exit(4)", 4),
        ("import sys; sys.exit('words')", 1),
        ("import atexit; atexit.register(print, 'the end'); raise SystemExit(256 + 3)", 3),
        ("raise ValueError('wrong')", 1),
        ("import warnings; warnings.warn('an error')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("import threading; threading.Thread(target=lambda: print('late')).start()", 0),
    ],
)
def test_it_ends_as_a_new_process_does(code: str, number: int) -> None:
    ends = []
    for cold in (False, True):
        with python("-c", code, env=ENVIRONMENT, cold=cold, **PIPES) as process:
            out, errors = process.communicate(timeout=100)
            ends.append((process.returncode, out, errors.splitlines()[-1:]))
    assert ends[0][0] == number
    assert ends[0] == ends[1]


@pytest.mark.process
def test_warnings_are_as_its_environment_says() -> None:
    for action, said in {"error": "Traceback", "default": "UserWarning: x", "ignore": ""}.items():
        process = python(
            "-c", "import warnings; warnings.warn('x')", env=ENVIRONMENT | {"PYTHONWARNINGS": action}, **PIPES
        )
        assert isinstance(process, Fork)
        errors = process.communicate()[1]
        assert said in errors
        assert bool(said) == bool(errors)


@pytest.mark.process
def test_random_numbers_differ_from_fork_to_fork() -> None:
    code = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1).item())"
    processes = [python("-c", code, env=ENVIRONMENT, **PIPES) for _ in range(2)]
    first, second = (process.communicate()[0].split() for process in processes)
    assert len({*first, *second}) == 6


@pytest.mark.process
def test_variables_that_modules_read_when_imported_need_a_new_process() -> None:
    with python("-c", "", env=ENVIRONMENT | {"HF_HOME": "elsewhere"}) as process:
        assert not isinstance(process, Fork)
    with python("-c", "", env=ENVIRONMENT | {"RANK": "1"}) as process:
        assert isinstance(process, Fork)


@pytest.mark.process
def test_signals_and_waiting_reach_the_process() -> None:
    with python("-c", "import time; print('here', flush=True); time.sleep(100)", env=ENVIRONMENT, **PIPES) as process:
        assert process.stdout.readline() == "here\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(20) == process.poll() == -signal.SIGUSR1


@pytest.mark.process
def test_nobody_waits_for_a_server_that_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    mortal = Server(preload=False)
    monkeypatch.setattr("helpers.forked.server", lambda: mortal)
    process = python("-c", "import sys; sys.stdin.read()", env=ENVIRONMENT, stdin=subprocess.PIPE)
    mortal.process.kill()
    with pytest.raises(RuntimeError, match="fork server ended with exit code -9"):
        process.wait()
    with pytest.raises(RuntimeError, match="fork server ended with exit code -9"):
        python("-c", "", env=ENVIRONMENT)
    process.stdin.close()
    process.returncode = 0


@pytest.mark.process
def test_its_children_end_with_the_server() -> None:
    code = """
from helpers import forked
forked.server = forked.cache(lambda: forked.Server(preload=False))
process = forked.python("-c", "import time; time.sleep(100)", env=forked.ENVIRONMENT)
print(process.pid)
process.returncode = 0
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    pid = int(done.stdout)
    assert done.returncode == 0, done.stderr
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.extensive
@pytest.mark.process
def test_a_run_of_a_new_process_and_of_a_fork_have_the_same_bits(tmp_path: Path) -> None:
    words = ("train", "digits", "--long-tail", 20, "--epochs", 1, "--batch-size", 64, "--set", "method.memory=64")
    words = (*words, "--set", "train.report=false")
    for cold in (False, True):
        run(*words, "--out", tmp_path / str(cold), cold=cold)
    assert_same_run(tmp_path / "False", tmp_path / "True")


def test_a_test_that_starts_python_without_the_marker_fails() -> None:
    with pytest.raises(RuntimeError, match=r"mark it with @pytest\.mark\.process"):
        subprocess.Popen([sys.executable, "-c", ""])
