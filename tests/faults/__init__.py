"""Promises about faults: a function tries one. `make test` calls it a few times, `make torture` as often as it can."""
