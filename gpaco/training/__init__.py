"""The training loop, schedule, checkpoints, run folder and stages. Knows no task."""
