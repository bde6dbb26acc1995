"""Readers of images with masks."""
