"""A run that is stopped and resumed with another number of loading processes, again and again."""

from pathlib import Path

from helpers.commands import run, start

from faults.promise import Promise, scratch
from faults.runs import check_same, dice_of, train, undisturbed
from faults.signals import stop

NUMBERS = (0, 1, 0, 2, 0, 4, 1, 2, 1, 4, 2, 4, 0)  # from each to each other; an attempt has a third
PATIENT = {"PYTHONWARNINGS": "default"}  # PyTorch warns of more workers than processors


def attempt(number: int, home: Path) -> int:
    dice, first = dice_of("workers", number), 4 * (number % 3)
    *numbers, last = NUMBERS[first : first + 5]
    with scratch(home, number) as folder:
        for workers in numbers:
            words = train("photos", home, folder / "run", "--workers", workers)
            stop(start(*words, more=PATIENT), dice, within=0.1)  # four stops within one training
        run(*train("photos", home, folder / "run", "--workers", last), more=PATIENT)
        check_same(folder / "run", undisturbed("photos", home)[0])
    return len(numbers)


PROMISE = Promise(
    "Resumed with another number of `--workers`, all pairs of 0, 1, 2 and 4: the same bits",
    attempt,
    attempts=1,
    goal=48,
    more=range(1, 3),
)
