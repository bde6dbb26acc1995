"""kill -9 at random moments; the same command resumes."""

import shutil
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
        while kills < 2:
            process = start(*words)
            if kind == "head" and not kills:  # while it embeds images
                wait_until(lambda: any((folder / "run").glob("features/*/features.f16")), process)
                time.sleep(dice.uniform(0, seconds / 8))
            else:
                time.sleep(dice.uniform(0.05, 0.6) * seconds)
            late = process.poll() is not None
            process.kill()
            _, errors = process.communicate()
            if late:  # it ended before: start over, and kill earlier
                assert process.returncode == 0, errors
                shutil.rmtree(folder / "run")
                kills, seconds = 0, seconds / 2
            else:
                kills += 1
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
