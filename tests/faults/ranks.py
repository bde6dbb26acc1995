"""One of two processes is killed; the same command resumes."""

import random
import shutil
import signal
import time
from pathlib import Path

from helpers.commands import children, run, start, start_ranks

from faults.promise import Promise, scratch
from faults.runs import PATIENCE, Words, catches, check_same, dice_of, plain_error, send, train, undisturbed, wait_until

GONE = "another process of this run has ended"


def attempt(number: int, home: Path) -> int:
    dice, kind = dice_of("ranks", number), ("gpaco", "segmentation")[number // 2 % 2]
    whole, _ = undisturbed(kind, home, ranks=2)
    kill = under_torchrun if number // 4 % 2 else alone
    with scratch(home, number) as folder:
        words = train(kind, home, folder / "run")
        while not kill(words, dice):  # too late: it had finished
            shutil.rmtree(folder / "run")
        run(*words, ranks=2)
        check_same(folder / "run", whole)
    return 1


def alone(words: Words, dice: random.Random) -> bool:
    """Kill one of two processes while they train; the other one says so. Return whether they did not end before."""
    ranks, victim = start_ranks(*words, ranks=2), dice.randrange(2)
    wait_until(lambda: all(catches(process.pid) for process in ranks), *ranks)
    time.sleep(dice.uniform(0, 0.5))
    ranks[victim].kill()
    ranks[victim].communicate()
    _, errors = ranks[1 - victim].communicate(timeout=PATIENCE)
    if ranks[1 - victim].returncode == 0:
        return False
    plain_error(errors, ranks[1 - victim].returncode, 3, GONE)
    return True


def under_torchrun(words: Words, dice: random.Random) -> bool:
    """The same; the agent ends the other process if that does not end by itself, and prints its own traceback."""
    process, victim = start(*words, ranks=2, group=True), dice.randrange(2)

    def both_train() -> bool:
        return len(children(process.pid)) == 2 and all(map(catches, children(process.pid)))

    wait_until(both_train, process)
    ranks = children(process.pid)
    time.sleep(dice.uniform(0, 0.5))
    send(signal.SIGKILL, ranks[victim])
    _, errors = process.communicate(timeout=PATIENCE)
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks), "a process is left"
    if process.returncode == 0:
        return False
    assert process.returncode == 1, f"exit {process.returncode}\n{errors}"
    assert "a bug in gpaco" not in errors, errors
    return True


PROMISE = Promise(
    "One of two processes is killed: the other ends with exit 3 and a plain message, or is ended by torchrun, none is "
    "left, and the same command resumes to the same bits",
    attempt,
    attempts=2,
    goal=20,
    more=range(2, 7, 2),
)
