"""All promises by the names of their modules."""

from importlib import import_module

NAMES = "kills saves workers world ranks trouble signals disks damage words images finite leaks network"
PROMISES = {name: import_module(f"faults.{name}").PROMISE for name in NAMES.split()}
