"""The training loop, schedule, checkpoints, run folder and stages, independent of the task."""
