"""The machine: files, locks, signals, devices, processes, progress, words for messages."""
