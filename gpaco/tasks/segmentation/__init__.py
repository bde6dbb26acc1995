"""Semantic segmentation: scenes and their masks, networks, inference and metrics. The loop is `training.loop.fit`."""
