"""Commands in a process that has no network, and that would be caught asking for one."""

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from helpers import forked
from helpers.no_network import beyond
from helpers.released import Released, SmallEncoder

from faults.namespaces import NEW_NETWORK, unshare
from faults.promise import Promise, scratch
from faults.runs import DIGITS, HEAD, PATIENCE, photos, scenes, train, undisturbed
from gpaco.cli.main import main


def commands(home: Path, out: Path) -> list[tuple[object, ...]]:
    whole, _ = undisturbed("gpaco", home)
    own = shutil.copytree(whole, out.with_name("own"))  # for commands that write into the run
    image = next(photos(home).rglob("*.jpg"))
    return [
        train("photos", home, out),
        ("train", *DIGITS, *HEAD, "--epochs", 1, "--out", out, "--set", "train.report=true"),
        train("segmentation", home, out),
        ("train", photos(home), "--dry-run"),
        ("check", photos(home)),
        ("check", scenes(home), "--task", "segmentation"),
        ("evaluate", whole, "--out", out.with_suffix(".json")),
        ("predict", whole, image, "--out", out.with_suffix(".csv")),
        ("report", whole, "--out", out.with_suffix(".html")),
        ("export", whole, "--out", out.with_suffix(".onnx")),
        ("recipes",),
        ("show", "default"),
        ("compare", photos(home), "--methods", "ce", "--seeds", 1, "--epochs", 1, "--size", 32, "--out", out),
        ("robustness", whole, "--corruptions", "contrast,jpeg_compression", "--severities", 1, "--out", out),
        ("convert", released(out.with_suffix(".pth")), "--out", out),
        ("mine", whole, photos(home), "--out", out.with_suffix(".csv"), "--n", 5),
        ("push", own, "me/name", "--dry-run"),
        ("latency", own),
        ("demo", "--out", out),
    ]


def released(path: Path) -> Path:
    """A checkpoint of the released code."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return Released(SmallEncoder(), classes=4, dim=8).save(path)


def attempt(number: int, home: Path) -> int:
    with scratch(home, number) as folder:
        known = commands(home, folder / "run")
        words = known[number % len(known)]
        forked.printed("-m", "faults.network", *words, cwd=folder, timeout=5 * PATIENCE)
    return 1


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """End the process at once if it asks for a network, also if it would live with having none."""
    if asked := beyond(event, arguments):
        sys.stderr.write(f"asked for a network: {asked}\n")
        sys.stderr.flush()
        os._exit(99)


PROMISE = Promise(
    "No command but one that is told to download asks for a network", attempt, attempts=1, goal=60, more=range(1, 18)
)

if __name__ == "__main__":
    with contextlib.suppress(OSError):  # where that is not allowed, asking is still noticed
        unshare(NEW_NETWORK)
    sys.addaudithook(watch)
    main(sys.argv[1:])
