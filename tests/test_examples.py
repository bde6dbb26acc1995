"""Each example runs as its head says."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(*command: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, "-W", "error", *command], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_loop_beats_cross_entropy_on_the_rare_digits() -> None:
    rows = run(str(EXAMPLES / "own_loop.py")).splitlines()
    rare = {line.rsplit(maxsplit=2)[0]: float(line.split()[-1]) for line in rows[2:]}
    assert rare["GPaCo"] > rare["cross entropy"] + 5


def test_mixup_learns() -> None:
    accuracies = re.findall(r"test accuracy ([\d.]+) %", run(str(EXAMPLES / "mixup.py")))
    assert len(accuracies) == 4
    assert float(accuracies[-1]) > 60


def test_ddp_runs_under_torchrun_with_one_memory() -> None:
    out = run("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(EXAMPLES / "ddp.py"))
    assert "2 processes" in out
    assert "the same memory of 256 rows everywhere: yes" in out
    assert float(re.findall(r"test accuracy ([\d.]+) %", out)[0]) > 55


def test_the_pixel_loss_learns_in_models_of_three_other_libraries() -> None:
    for library in ("smp", "torchvision", "transformers"):
        out = run(str(EXAMPLES / f"segmentation_{library}.py"))
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", out)]
        assert losses[-1] < losses[0] - 0.3, library
        assert float(re.findall(r"mean IoU ([\d.]+) %", out)[0]) > 18, library  # one class everywhere gives 13
