"""One of two processes is killed; the same command resumes."""

import os
import signal
import time
from pathlib import Path

from helpers.commands import children, run, start, start_ranks

from faults.promise import Promise, scratch
from faults.runs import PATIENCE, catches, check_same, dice_of, plain_error, train, undisturbed, wait_until

GONE = "another process of this run has ended"


def attempt(number: int, home: Path) -> int:
    dice, kind = dice_of("ranks", number), ("gpaco", "segmentation")[number // 2 % 2]
    whole, seconds = undisturbed(kind, home, ranks=2)
    victim = dice.randrange(2)
    with scratch(home, number) as folder:
        words = train(kind, home, folder / "run")
        if number % 2:
            ranks = start_ranks(*words, ranks=2)
            wait_until(lambda: all(catches(process.pid) for process in ranks), *ranks)
            time.sleep(dice.uniform(0, seconds / 4))
            ranks[victim].kill()
            ranks[victim].communicate()
            _, errors = ranks[1 - victim].communicate(timeout=PATIENCE)
            plain_error(errors, ranks[1 - victim].returncode, 3, GONE)
        else:
            process = start(*words, ranks=2)

            def both_train() -> bool:
                return len(children(process.pid)) == 2 and all(map(catches, children(process.pid)))

            wait_until(both_train, process)
            time.sleep(dice.uniform(0, seconds / 4))
            os.kill(children(process.pid)[victim], signal.SIGKILL)
            _, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode != 0
            assert "a bug in gpaco" not in errors, errors
        run(*words, ranks=2)
        check_same(folder / "run", whole)
    return 1


PROMISE = Promise(
    "One of two processes is killed, under torchrun or not: the other ends with exit 3 and a plain message, and the "
    "same command resumes to the same bits",
    attempt,
    attempts=2,
    goal=20,
)
