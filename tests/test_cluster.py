"""The cluster templates: the Slurm script under a scheduler that preempts it, and the file for Kubernetes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from helpers import commands

EXAMPLES = Path(__file__).parents[1] / "examples"
TRAIN = ["digits", "--long-tail", "20", "--epochs", "4", "--set", "train.report=false", "--workers", "0"]
# A scheduler of two tasks: srun starts them, and passes on the signal that the test sends to it, as slurmstepd would.
SRUN = """#!/usr/bin/env bash
pids=()
for task in 0 1; do SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NTASKS=2 "$@" & pids+=($!); done
echo "${pids[@]}" > "$TASKS"
worst=0
for pid in "${pids[@]}"; do wait "$pid"; code=$?; [ "$code" -gt "$worst" ] && worst=$code; done
rm -f "$TASKS"
exit $worst
"""
# Slurm runs a copy of the script, with the options in its head; here without a queue.
SBATCH = """#!/usr/bin/env bash
grep '^#SBATCH ' "$1" > "$OPTIONS" || exit 2
cp "$1" "$OPTIONS.script"
SLURM_JOB_ID=7 SLURM_JOB_NODELIST=here exec bash "$OPTIONS.script" "${@:2}"
"""
SCONTROL = """#!/usr/bin/env bash
if [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> "$REQUEUED"; fi
"""


def submit(home: Path, out: Path, port: int, srun: str = SRUN) -> subprocess.Popen[str]:
    """Give the script to a fake sbatch, which finds a fake srun and scontrol in its path."""
    programs = home / "bin"
    programs.mkdir(exist_ok=True)
    for name, text in (("sbatch", SBATCH), ("srun", srun), ("scontrol", SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = commands.ENVIRONMENT | {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONWARNINGS": "default",
        "OPTIONS": str(home / "options"),
        "MASTER_PORT": str(port),
        "TASKS": str(home / "tasks"),
        "REQUEUED": str(home / "requeued"),
    }
    job = [str(programs / "sbatch"), str(EXAMPLES / "slurm.sh"), TRAIN[0], str(out), *TRAIN[1:]]
    return subprocess.Popen(job, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def preempt(home: Path, out: Path, number: signal.Signals) -> None:
    """Send the signal to every task once a step has been logged or a second of training has passed."""
    tasks = home / "tasks"
    until = time.monotonic() + 120
    while not (tasks.is_file() and (out / "recipe.toml").is_file()) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.7)
    if tasks.is_file():
        for pid in tasks.read_text().split():
            os.kill(int(pid), number)


@pytest.mark.extensive
@pytest.mark.process
@pytest.mark.timeout(600)
def test_a_job_that_slurm_preempts_five_times_is_requeued_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    straight = submit(tmp_path, tmp_path / "straight", 29611)
    _, errors = straight.communicate(timeout=300)
    assert straight.returncode == 0, errors
    assert not (tmp_path / "requeued").exists()
    signals, requeued = [signal.SIGUSR1, signal.SIGTERM] * 3, 0
    for turn in range(20):
        job = submit(tmp_path, tmp_path / "preempted", 29620 + turn)
        if signals:
            preempt(tmp_path, tmp_path / "preempted", signals.pop())
        _, errors = job.communicate(timeout=300)
        if job.returncode == 0:
            break
        requeued += 1
        assert job.returncode in (143, 138, 3), errors
    assert requeued >= 5
    assert (tmp_path / "requeued").read_text().count("requeue 7") == requeued
    commands.assert_same_run(tmp_path / "straight", tmp_path / "preempted")


def test_the_kubernetes_job_restarts_what_was_saved_and_fails_on_wrong_input() -> None:
    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    rules = {rule["action"]: rule["onExitCodes"]["values"] for rule in spec["podFailurePolicy"]["rules"]}
    assert rules == {"Ignore": [130, 143], "FailJob": [1, 2, 4]}  # 3 counts
    assert spec["backoffLimit"] == 3 * spec["completions"]
    assert spec["completions"] == spec["parallelism"] == int(container["env"][0]["value"])
    assert service["metadata"]["name"] == pod["subdomain"]
    assert container["env"][1]["value"] == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert subprocess.run(["bash", "-n", "-c", container["command"][2]], check=False).returncode == 0


def dry_run(home: Path, code: int) -> bool:
    """Submit a job whose processes only exit with `code`; whether it went back into the queue."""
    requeued = home / "requeued"
    requeued.write_text("")
    job = submit(home, home / "run", 29500, f'#!/usr/bin/env bash\necho "$@" > {home}/started\nexit {code}\n')
    _, errors = job.communicate(timeout=60)
    assert job.returncode == code, errors
    return requeued.read_text() == "requeue 7\n"


def test_slurm_requeues_what_was_saved_a_few_faults_in_a_row_and_nothing_else(tmp_path: Path) -> None:
    assert not any(dry_run(tmp_path, code) for code in (0, 1, 2, 4))
    assert all(dry_run(tmp_path, code) for code in (130, 138, 143, 143, 143, 143))
    assert [dry_run(tmp_path, 3) for _ in range(5)] == [True, True, True, False, False]
    assert [dry_run(tmp_path, code) for code in (143, 3)] == [True, True]
    started = (tmp_path / "started").read_text()
    assert f'python -m gpaco train "$@" gpaco digits --out {tmp_path}/run --long-tail 20' in started
    options = dict(line[8:].partition("=")[::2] for line in (tmp_path / "options").read_text().splitlines())
    assert options["--signal"] == "USR1@120"
    assert options["--nodes"] == "2"
    assert "--requeue" in options
