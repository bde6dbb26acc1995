"""Metrics: arrays in, figures out."""
