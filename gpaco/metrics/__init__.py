"""Metrics: arrays in, numbers out."""
