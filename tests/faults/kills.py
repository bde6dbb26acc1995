"""kill -9 at random moments; the same command resumes."""

import time
from pathlib import Path

from helpers.commands import run, start

from faults.promise import Promise, scratch
from faults.runs import check_same, dice_of, train, undisturbed, wait_until

TRAINED = ("gpaco", "supcon", "segmentation", "paco", "head")


def attempt(number: int, home: Path) -> int:
    dice, kind = dice_of("kills", number), TRAINED[number % len(TRAINED)]
    whole, seconds = undisturbed(kind, home)
    kills = 0
    with scratch(home, number) as folder:
        words = train(kind, home, folder / "run")
        for again in range(2):
            process = start(*words)
            if kind == "head" and not again:  # while it embeds images
                wait_until(lambda: any((folder / "run").glob("features/*/features.f16")), process)
                time.sleep(dice.uniform(0, seconds / 8))
            else:
                time.sleep(dice.uniform(0.05, 0.6) * seconds)
            kills += process.poll() is None
            process.kill()
            process.communicate()
        run(*words)
        check_same(folder / "run", whole)
    return kills


PROMISE = Promise(
    "`kill -9` at random moments, then the same command: weights, optimizer, averaged weights, momentum copy, memory, "
    "features and history are the same bits (gpaco, paco, supcon, segmentation, `--train head`)",
    attempt,
    attempts=3,
    goal=100,
    more=range(3, 5),
)
