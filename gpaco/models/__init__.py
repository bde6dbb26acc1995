"""Backbones, the classifier, adapters and pretrained weights."""
