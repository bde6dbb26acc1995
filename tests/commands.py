"""Run the command `gpaco` in a process of its own, as a user would."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "error"}


def start(
    *words: object, ranks: int = 1, group: bool = False, more: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """The running command; with several ranks under torchrun. It may have a process group of its own.

    `more` goes into its environment.
    """
    launcher = [sys.executable, "-m"]
    if ranks > 1:
        launcher += ["torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), "-m"]
    return subprocess.Popen(
        [*launcher, "gpaco", *map(str, words)],
        env=ENVIRONMENT | ({} if ranks == 1 else {"PYTHONWARNINGS": "default"}) | (more or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=group,
    )


def run(*words: object, code: int = 0, ranks: int = 1, more: dict[str, str] | None = None) -> str:
    """What the command prints on standard output; it must exit with `code`."""
    process = start(*words, ranks=ranks, more=more)
    out, errors = process.communicate(timeout=200)
    assert process.returncode == code, f"exit {process.returncode}\n{out}\n{errors}"
    return out


def fails(*words: object, code: int = 2, more: dict[str, str] | None = None) -> str:
    """The cause and the remedy, each a line, that the command ends with; no traceback."""
    process = start(*words, more=more)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == code, f"exit {process.returncode}\n{errors}"
    lines = errors.strip().splitlines()
    assert "Traceback" not in errors
    assert re.match(r"error: \S", lines[-2]), errors
    assert re.match(r"  \S", lines[-1]), errors
    return "\n".join(lines[-2:])


def children(pid: int) -> list[int]:
    """The processes that one has started."""
    return [int(word) for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()]


def apart(pid: int) -> bool:
    """Whether a process is the leader of its own group."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def checkpoint_files(run_folder: Path) -> dict[str, bytes]:
    """The tensors of the newest checkpoint, file by file."""
    newest = run_folder / "checkpoints" / (run_folder / "checkpoints" / "latest").read_text().strip()
    return {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}


def history(folder: Path) -> list[dict[str, object]]:
    """The rows of the log, without what depends on the clock."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "time"} for row in rows]


def assert_same_run(one: Path, other: Path) -> None:
    assert checkpoint_files(one) == checkpoint_files(other)
    assert history(one) == history(other)
    figures = [json.loads((folder / "metrics.json").read_text()) for folder in (one, other)]
    assert figures[0] == figures[1]
