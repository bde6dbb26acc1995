"""Small runs to disturb, the same runs undisturbed, and what must be equal at their end."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from helpers import forked
from helpers.commands import run
from helpers.images import photographs
from helpers.scenes import MODEL, SMALL, scene_folder

PATIENCE = 120  # seconds, on a busy machine; far below the ten minutes that a collective waits for an answer
Words = tuple[object, ...]


def changes(*settings: str) -> Words:
    return tuple(word for setting in settings for word in ("--set", setting))


COMMON = changes("method.memory=64", "train.report=false")
DIGITS = ("digits", "--long-tail", 50, "--batch-size", 64, *COMMON)
MASKS = changes(*SMALL, "train.ema=0.9", "train.report=false")
HEAD = ("--train", "head", "--model", "resnet20", "--size", 32, *changes("model.hidden=64"))
# Each kind of training with state of its own: averaged weights, a momentum copy, stages, masks, cached features.
KINDS: dict[str, Words] = {
    "gpaco": (*DIGITS, "--method", "gpaco", "--epochs", 6, *changes("train.ema=0.9")),
    "paco": (*DIGITS, "--method", "paco", "--epochs", 6),
    "supcon": (*DIGITS, "--method", "supcon", "--epochs", 3, *changes("method.momentum_keys=true")),
    "head": (*DIGITS, "--epochs", 6, *HEAD),
    "segmentation": ("SCENES", "--task", "segmentation", "--model", MODEL, "--epochs", 5, *MASKS),
    "photos": ("PHOTOS", "--model", "resnet8", "--size", 32, "--epochs", 8, "--batch-size", 8, *COMMON),
}


@cache
def photos(home: Path) -> Path:
    """Images in files, which other processes load."""
    return photographs(home / "photos", {"cat": 60, "dog": 20, "owl": 8})


scenes = cache(lambda home: scene_folder(home / "scenes"))


def train(kind: str, home: Path, out: Path, *more: object) -> Words:
    """The words of the command that trains such a run."""
    made = {"PHOTOS": photos, "SCENES": scenes}
    data, *rest = KINDS[kind]
    return ("train", made[data](home) if data in made else data, *rest, "--out", out, *more)


@cache
def undisturbed(kind: str, home: Path, ranks: int = 1) -> tuple[Path, float]:
    """The folder of a complete run, and the seconds that it took."""
    forked.server()  # its start does not count
    folder, began = home / f"undisturbed-{kind}-{ranks}", time.monotonic()
    run(*train(kind, home, folder), ranks=ranks)
    return folder, time.monotonic() - began


def result(folder: Path) -> dict[str, bytes]:
    """Every file of a run that must not depend on what happened on the way; of checkpoints the newest and the best."""
    files = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    kept = {}
    for path, content in files.items():
        if path.name in ("run.lock", "in-use.txt", "latest"):
            continue
        if "checkpoints" in path.parts:
            home = folder.joinpath(*path.parts[: path.parts.index("checkpoints") + 1])
            newest = (home / "latest").read_text().strip()
            best = json.loads((home / newest / "state.json").read_bytes())["state"]["position"]["best_step"]
            if path.parent.name not in (newest, f"step-{best or 0:08d}"):
                continue
        if path.name == "metrics.jsonl":
            rows = [json.loads(line) for line in content.splitlines()]
            content = json.dumps([{key: row[key] for key in row if key != "time"} for row in rows]).encode()
        if path.name == "recipe.toml":  # workers may change, and features are in the folder of the run
            lines = content.replace(bytes(folder), b"RUN").splitlines(True)
            content = b"".join(line for line in lines if not line.startswith(b"workers = "))
        kept[str(path)] = content
    return kept


def check_same(one: Path, other: Path) -> None:
    """Raise an error that names the files in which two runs differ."""
    mine, theirs = result(one), result(other)
    differs = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
    assert not differs, f"{one} and {other} differ in {', '.join(differs)}"
    left = [path for path in one.rglob(".*") if path.name.endswith((".writing", ".removing"))]
    assert not left, f"left behind: {left}"


def wait_until(condition: Callable[[], object], *processes: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


def catches(pid: int, number: int = signal.SIGTERM) -> bool:
    """Whether a process has a handler for a signal: a run has one for SIGTERM as long as it trains."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt")), 0)
    return bool(caught >> (number - 1) & 1)


def send(number: int, *pids: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # it has ended by itself
            continue


def plain_error(errors: str, code: int | None, expected: int, cause: str = "") -> None:
    """Check that a command ended with one line of cause and one of remedy."""
    assert code == expected, f"exit {code}\n{errors}"
    assert "Traceback" not in errors, errors
    said, remedy = (["", *errors.rstrip().splitlines()])[-2:]
    assert said.startswith("error: "), errors
    assert remedy.startswith("  "), errors
    assert cause in said, errors


def dice_of(*keys: object) -> random.Random:
    """Random numbers that depend on these keys only."""
    return random.Random(repr(keys))  # noqa: S311
