"""Pretrained weights from files, packages, the hub and other code."""
