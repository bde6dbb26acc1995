"""SIGTERM, SIGINT and SIGUSR1 at random moments, to one process or to many, once or twice."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

from helpers.commands import children, run, start, tree

from faults.promise import Promise, scratch
from faults.runs import PATIENCE, catches, check_same, dice_of, send, train, undisturbed, wait_until

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 143}
STOPS = 4  # of one training
# Whom the signals go to: a user's kill, Ctrl-C, what systemd and Slurm do, and that under torchrun.
WHOM = ("tree", "group", "process", "agent and workers")


def attempt(number: int, home: Path) -> int:
    dice, whom = dice_of("signals", number), WHOM[number % len(WHOM)]
    with scratch(home, number) as folder:
        if whom == "agent and workers":
            return _under_torchrun(dice, home, folder / "run")
        words = train("photos", home, folder / "run", "--workers", 2)
        for _ in range(STOPS):
            stop(start(*words, group=True), dice, whom, dice.choice([1, 2]), within=0.1)
        run(*words)
        check_same(folder / "run", undisturbed("photos", home)[0])
    return STOPS


def stop(
    process: "subprocess.Popen[str]", dice: random.Random, whom: str = "process", times: int = 1, within: float = 0.3
) -> None:
    """Stop a run that trains, at a random moment of its first so many seconds; it must save."""
    number = dice.choice(list(CODES))
    wait_until(lambda: catches(process.pid), process)
    time.sleep(dice.uniform(0, within))
    for _ in range(times):
        if whom == "group" and process.poll() is None:
            os.killpg(process.pid, number)
        else:
            send(number, *(tree(process.pid) if whom == "tree" else [process.pid]))
        time.sleep(dice.uniform(0, 0.1))
    _, errors = process.communicate(timeout=PATIENCE)
    what = f"{signal.Signals(number).name} to the {whom}, {times} times"
    assert process.returncode == CODES[number], f"{what}: exit {process.returncode}\n{errors}"
    assert "after saving; rerun the same command to resume" in errors, f"{what}: {errors}"


def _under_torchrun(dice: random.Random, home: Path, folder: Path) -> int:
    """A signal to all, once or twice: workers get it from the sender and again from the agent, which passes it on.

    The agent does not know SIGUSR1, which goes to the workers alone. Its own exit code is always 1.
    """
    number, times = dice.choice(list(CODES)), dice.choice([1, 2])
    process = start(*train("gpaco", home, folder), ranks=2, group=True)

    def all_train() -> bool:
        ranks = children(process.pid)
        return len(ranks) == 2 and all(map(catches, ranks))

    wait_until(all_train, process)
    time.sleep(dice.uniform(0, 0.2))
    for _ in range(times):
        send(number, *(children(process.pid) if number == signal.SIGUSR1 else tree(process.pid)))
        time.sleep(dice.uniform(0, 0.1))
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, f"exit {process.returncode}\n{errors}"
    assert errors.count(f"stopped by {signal.Signals(number).name} after saving") == 2, errors
    assert "error:" not in errors, errors
    run(*train("gpaco", home, folder), ranks=2)
    check_same(folder, undisturbed("gpaco", home, ranks=2)[0])
    return 1


PROMISE = Promise(
    "SIGTERM, SIGINT and SIGUSR1 at random moments to the process, its group, its tree of processes, or the agent and "
    "workers of torchrun, once or twice: finishes the step, saves, exits with 143 or 130 (torchrun itself with "
    "1), resumes to the same bits",
    attempt,
    attempts=1,
    goal=100,
    more=range(1, 4),
)
