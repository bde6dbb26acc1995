"""Weights written by other people."""
