#!/usr/bin/env bash
# Train on two machines with eight GPUs each: sbatch examples/slurm.sh DATA RUN [more options of gpaco train].
# Before the time is up Slurm sends SIGUSR1. gpaco saves, exits with 143, and the job goes back into the queue. After a
# fault of the machine (exit code 3) it goes back three times in a row at most; RUN.faults counts them.
#SBATCH --job-name=gpaco
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -u

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=${MASTER_PORT:-29500}

# One process per GPU, without torchrun: signals reach each process, and its exit code reaches this script.
srun bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; exec python -m gpaco train "$@"' \
    gpaco "$1" --out "$2" "${@:3}"
code=$?

again=false
case $code in
    130 | 138 | 143) # 138: SIGUSR1 came before gpaco was up
        again=true
        ;;
    3)
        faults=$(($(cat "$2.faults" 2> /dev/null || echo 0) + 1))
        echo "$faults" > "$2.faults"
        [ "$faults" -le 3 ] && again=true
        ;;
esac
[ "$code" -ne 3 ] && rm -f "$2.faults"
if $again; then
    echo "exit code $code: back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
