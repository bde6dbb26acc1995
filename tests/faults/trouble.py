"""One of two processes is in trouble that the other one knows nothing of: nobody waits for ever."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import numpy as np
from helpers.commands import run, start_ranks
from helpers.scenes import MODEL, SMALL, scene_folder
from PIL import Image

from faults.promise import Promise, scratch
from faults.runs import DIGITS, PATIENCE, catches, changes, dice_of, photos, plain_error, train, wait_until


def attempt(number: int, home: Path) -> int:
    with scratch(home, number) as folder:
        (bad_image, ignored_mask, stands_still, refused_folder)[number % 4](number, home, folder)
    return 1


@contextmanager
def two_ranks(*words: object) -> Iterator[list["Popen[str]"]]:
    """Two processes of one run without torchrun, whose exit codes can be seen; killed at the end."""
    ranks = start_ranks(*words, ranks=2)
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def bad_image(number: int, home: Path, folder: Path) -> None:
    """A file that was good when the run began is bad when one process reads it."""
    dice, data = dice_of("trouble", number), folder / "data"
    for path in photos(home).rglob("*.jpg"):
        (data / path.parent.name).mkdir(parents=True, exist_ok=True)
        os.link(path, data / path.parent.name / path.name)
    words = ("train", data, *train("photos", home, folder / "run")[2:], "--workers", 1, *changes("train.epochs=90"))
    with two_ranks(*words) as ranks:
        wait_until((folder / "run" / "metrics.jsonl").exists, *ranks)
        for path in dice.sample(sorted(data.rglob("*.jpg")), 20):  # of the many that are held in no other part
            path.unlink()
            path.write_bytes(dice.choice([b"", b"no image", path.name.encode() * 99]))
        said = [process.communicate(timeout=PATIENCE)[1] for process in ranks]
        codes = [process.returncode for process in ranks]
        assert 2 in codes, f"{codes}\n{said}"
        for code, errors in zip(codes, said, strict=True):
            plain_error(errors, code, code if code in (2, 3) else -1, "cannot read image" if code == 2 else "process")


def ignored_mask(number: int, home: Path, folder: Path) -> None:
    """Only one of eight masks has labels, so in one step of each epoch one process has a loss and the other has not."""
    data = scene_folder(folder / "scenes")
    for path in sorted((data / "masks" / "train").iterdir())[1:]:
        Image.fromarray(np.full_like(np.asarray(Image.open(path)), 255)).save(path)
    words = ("train", data, "--task", "segmentation", "--model", MODEL, "--epochs", 3, "--batch-size", 4)
    run(*words, *changes(*SMALL, "train.report=false", f"train.seed={number}"), "--out", folder / "run", ranks=2)


def stands_still(number: int, home: Path, folder: Path) -> None:
    dice, words = dice_of("trouble", number), ("train", *DIGITS, "--epochs", 500, *changes("train.timeout=0.1"))
    with two_ranks(*words, "--out", folder / "run") as ranks:
        wait_until(lambda: all(catches(process.pid) for process in ranks), *ranks)
        time.sleep(dice.uniform(0, 0.5))
        still = dice.randrange(2)
        ranks[still].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        _, errors = ranks[1 - still].communicate(timeout=PATIENCE)
        plain_error(errors, ranks[1 - still].returncode, 3, "another process of this run is not responding")
        assert 5 < time.monotonic() - began < 30


def refused_folder(number: int, home: Path, folder: Path) -> None:
    """The first process may not write where it was told to."""
    (folder / "notes.txt").write_text("mine")
    with two_ranks("train", *DIGITS, "--out", folder) as ranks:
        said = [process.communicate(timeout=PATIENCE)[1] for process in ranks]
        codes = [process.returncode for process in ranks]
        assert codes[0] == 2, said
        assert codes[1] in (2, 3), said
        plain_error(said[0], 2, 2, "is not empty")
        plain_error(said[1], codes[1], codes[1])


PROMISE = Promise(
    "One of two processes meets a bad image, a mask without labels, or a folder that is not its own, or stands still: "
    "no process waits longer than `train.timeout`, each ends with a plain message",
    attempt,
    attempts=4,
    goal=20,
)
