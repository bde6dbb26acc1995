"""A run that is stopped and resumed with another number of loading processes, again and again."""

from itertools import pairwise
from pathlib import Path

from helpers.commands import run, start

from faults.promise import Promise, scratch
from faults.runs import check_same, dice_of, train, undisturbed
from faults.signals import stop

NUMBERS = (0, 1, 0, 2, 0, 4, 1, 2, 1, 4, 2, 4, 0)  # from each number to each other one
PATIENT = {"PYTHONWARNINGS": "default"}  # PyTorch warns of more workers than processors


def attempt(number: int, home: Path) -> int:
    dice = dice_of("workers", number)
    pairs = list(pairwise(NUMBERS))
    first = number % len(pairs)
    with scratch(home, number) as folder:
        for workers, _ in pairs[first:] + pairs[:first]:
            words = train("photos", home, folder / "run", "--workers", workers)
            stop(start(*words, more=PATIENT), dice, within=0.1)  # twelve stops within one training
        run(*train("photos", home, folder / "run", "--workers", pairs[first][0]), more=PATIENT)
        check_same(folder / "run", undisturbed("photos", home)[0])
    return len(pairs)


PROMISE = Promise(
    "Resumed with another number of `--workers`, all pairs of 0, 1, 2 and 4: the same bits",
    attempt,
    attempts=1,
    goal=48,
)
