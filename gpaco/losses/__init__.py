"""Losses: tensors in, a scalar out. They need only torch, NumPy and `system.distributed`."""
