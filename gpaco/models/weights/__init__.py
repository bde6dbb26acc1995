"""Weights from elsewhere: files, the hub, other layouts."""
