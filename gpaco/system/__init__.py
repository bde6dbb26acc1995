"""The machine: files, locks, signals, devices, processes, progress, text for messages."""
