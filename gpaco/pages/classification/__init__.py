"""Sections of the page about classifiers."""
