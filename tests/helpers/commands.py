"""Run the command `gpaco` in its own process, as a user would."""

import json
import re
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpaco.cli.main import main
from helpers import forked

ENVIRONMENT = dict(forked.ENVIRONMENT)


def start(
    *words: object, ranks: int = 1, group: bool = False, more: dict[str, str] | None = None, cold: bool = False
) -> subprocess.Popen[str]:
    """Start the command, under torchrun if there are several ranks, optionally in its own process group.

    `more` goes into its environment. Unless `cold`, the process is forked from one that has imported everything.
    """
    launcher = ["-m"]
    if ranks > 1:
        launcher += ["torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), "-m"]
    return forked.python(
        *launcher,
        "gpaco",
        *words,
        env=ENVIRONMENT | ({} if ranks == 1 else {"PYTHONWARNINGS": "default"}) | (more or {}),
        cold=cold,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=group,
    )


def start_ranks(*words: object, ranks: int) -> list[subprocess.Popen[str]]:
    """Start the command once for each rank, without torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    places = [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(ranks)]
    variables = [{name: str(value) for name, value in place.items()} for place in places]
    return [start(*words, more=place | {"PYTHONWARNINGS": "default"}) for place in variables]


def run(*words: object, code: int = 0, ranks: int = 1, more: dict[str, str] | None = None, cold: bool = False) -> str:
    """Run the command and return what it (or the first of several ranks) prints; it must exit with `code`."""
    processes = start_ranks(*words, ranks=ranks) if ranks > 1 else [start(*words, more=more, cold=cold)]
    with ThreadPoolExecutor(ranks) as threads:
        said = list(threads.map(lambda process: process.communicate(timeout=200), processes))
    for process, (out, errors) in zip(processes, said, strict=True):
        assert process.returncode == code, f"exit {process.returncode}\n{out}\n{errors}"
    return said[0][0]


def fails(*words: object, code: int = 2, more: dict[str, str] | None = None) -> str:
    """Return the cause and the remedy, each a line, that the command ends with; no traceback."""
    process = start(*words, more=more)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == code, f"exit {process.returncode}\n{errors}"
    lines = errors.strip().splitlines()
    assert "Traceback" not in errors
    assert re.match(r"error: \S", lines[-2]), errors
    assert re.match(r"  \S", lines[-1]), errors
    return "\n".join(lines[-2:])


def here(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> tuple[str, str]:
    """Run the command in this process; what it prints, on standard output and error. It must exit with `code`."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    out, errors = capsys.readouterr()
    assert left.value.code == code, f"{out}\n{errors}"
    return out, errors


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(word) for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()]


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    return [pid, *(below for child in children(pid) for below in tree(child))]


def checkpoint_files(run_folder: Path) -> dict[str, bytes]:
    """Return the tensors of the newest checkpoint, by file."""
    newest = run_folder / "checkpoints" / (run_folder / "checkpoints" / "latest").read_text().strip()
    return {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}


def history(folder: Path) -> list[dict[str, object]]:
    """Return the rows of the log, without times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "time"} for row in rows]


def assert_same_run(one: Path, other: Path) -> None:
    assert checkpoint_files(one) == checkpoint_files(other)
    assert history(one) == history(other)
    figures = [json.loads((folder / "metrics.json").read_text()) for folder in (one, other)]
    assert figures[0] == figures[1]
