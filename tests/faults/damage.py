"""A checkpoint with changed, missing or added bytes."""

import random
from pathlib import Path

from helpers.saving import assert_is_step, save_step

from faults.promise import Promise, scratch
from faults.runs import dice_of
from gpaco.errors import UserError
from gpaco.training.checkpoint import load

KINDS = ("flip", "cut", "add", "insert", "delete", "zero", "swap", "empty", "gone")


def mutant(good: bytes, dice: random.Random) -> bytes | None:
    """The content with some damage; None for no file at all."""
    kind, at, bad = dice.choice(KINDS), dice.randrange(len(good)), bytearray(good)
    if kind == "flip":
        bad[at] ^= 1 << dice.randrange(8)
    elif kind == "cut":
        del bad[at:]
    elif kind == "add":
        bad += dice.randbytes(dice.randrange(1, 9))
    elif kind == "insert":
        bad[at:at] = dice.choice([b" ", b"\n", dice.randbytes(1)])
    elif kind == "delete":
        del bad[at]
    elif kind == "zero":
        bad[at : at + 64] = bytes(len(bad[at : at + 64]))
    elif kind == "swap":
        other = dice.randrange(len(good))
        bad[at], bad[other] = bad[other], bad[at]
    elif kind == "empty":
        bad.clear()
    return None if kind == "gone" else bytes(bad)


def attempt(number: int, home: Path) -> int:
    dice, tried = dice_of("damage", number), 0
    with scratch(home, number) as folder:
        save_step(folder, 1)
        newest = save_step(folder, 2)
        files = sorted(newest.iterdir())
        while tried < 100:
            path = dice.choice(files)
            good = path.read_bytes()
            bad = mutant(good, dice)
            if bad == good:
                continue
            tried += 1
            path.unlink() if bad is None else path.write_bytes(bad)
            _check(folder, path.name, bad)
            path.write_bytes(good)
        assert_is_step(load(folder), 2)
    return tried


def _check(folder: Path, name: str, bad: bytes | None) -> None:
    found = load(folder)
    assert_is_step(found, found.step)
    if found.step == 2:  # white space in the manifest means nothing
        assert name == "MANIFEST.json", f"{name} was loaded though it is {bad!r}"
        return
    (warning,) = found.warnings
    assert "step-00000002 is damaged" in warning, warning
    try:
        load(folder / "step-00000002")
    except UserError as error:
        assert "is damaged" in error.cause, error  # noqa: PT017
    else:
        raise AssertionError(f"{name} was loaded though it is {bad!r}")


PROMISE = Promise(
    "A checkpoint with damaged, missing or added bytes: never loaded silently; the one before is used with a warning",
    attempt,
    attempts=2,
    goal=20_000,
)
