"""Losses: tensors in, a scalar out. Needs torch and `system.distributed`, nothing else."""
