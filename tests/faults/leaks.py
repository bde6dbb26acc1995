"""Memory, processes and temporary files after many steps."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from helpers import forked
from helpers.commands import children

from faults.promise import Promise, scratch
from faults.runs import photos
from gpaco.api.train import train
from gpaco.system.progress import quiet

STEPS = 500


def attempt(number: int, home: Path) -> int:
    """Numbers from 1000 on train for ten times as long. Images come from loading processes and from memory in turn."""
    steps = STEPS if number < 1000 else 10 * STEPS
    data = "digits" if number % 2 else photos(home)
    with scratch(home, number) as folder:
        command = ("-m", "faults.leaks", data, folder, steps, number)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
        with forked.python(*command, env=forked.ENVIRONMENT, **pipes) as process:
            out, errors = process.communicate(timeout=3000)
        assert process.returncode == 0, errors
        memory = json.loads(out.splitlines()[-1])
        steps = len(memory["own"])
        assert any(memory["loaders"]) == (data != "digits")
        for whose, sizes in memory.items():
            early, late = (max(sizes[at : at + steps // 10]) for at in (steps // 5, steps - steps // 10))
            assert late <= 1.02 * early, f"memory ({whose}) grew from {early:,} to {late:,} bytes"
        assert not list((folder / "tmp").iterdir()), list((folder / "tmp").iterdir())
        left = [path.parent.name for path in Path("/proc").glob("[0-9]*/stat") if _session(path) == process.pid]
        assert not left, f"processes {left} are left"
    return steps


def _session(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[3])
    except OSError:  # it has just ended
        return 0


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # it has just ended
        return 0


def measure(data: str, folder: Path, steps: int, seed: int) -> dict[str, list[int]]:
    """Train; return the resident memory after every step, and that of the largest process that loads images."""
    (folder / "tmp").mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
    memory: dict[str, list[int]] = {"own": [], "loaders": []}

    def show(row: dict[str, Any]) -> None:
        if "step" in row:
            memory["own"].append(_resident(os.getpid()))
            memory["loaders"].append(max(map(_resident, children(os.getpid())), default=0))

    images, size = ({"long_tail": 20}, 8) if data == "digits" else ({"size": 32}, 2)
    flags = {"method": "gpaco", "model": "resnet8", "batch_size": size, "seed": seed, "report": False, "workers": 2}
    epochs = -(-steps // (50 if data == "digits" else 30))
    settings = ["method.memory=64", "train.checkpoint_every=5"]
    train(data, out=folder / "run", epochs=epochs, show=show, say=quiet, settings=settings, **images, **flags)
    return memory


PROMISE = Promise(
    "Many steps, with images from memory and from loading processes: resident memory, also that of loading "
    "processes, grows by less than 2%, no process and no temporary file is left",
    attempt,
    attempts=1,
    goal=10_000,
    more=range(1, 2),
)

if __name__ == "__main__":
    data, folder, steps, seed = sys.argv[1:]
    print(json.dumps(measure(data, Path(folder), int(steps), int(seed))))
