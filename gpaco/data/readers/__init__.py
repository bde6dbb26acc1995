"""Readers: from a path to labeled samples."""
