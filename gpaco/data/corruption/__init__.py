"""Corrupted images for robustness."""
