"""Semantic segmentation: scenes and their masks, networks, inference and figures. The loop is `training.loop.fit`."""
