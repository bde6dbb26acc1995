"""Losses: tensors in, a scalar out. They need only torch and `system.distributed`."""
