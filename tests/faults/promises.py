"""All promises by the names of their modules."""

from faults import (
    damage,
    disks,
    finite,
    kills,
    leaks,
    network,
    pictures,
    ranks,
    saves,
    signals,
    trouble,
    words,
    workers,
    world,
)

MODULES = (
    kills,
    saves,
    workers,
    world,
    ranks,
    trouble,
    signals,
    disks,
    damage,
    words,
    pictures,
    finite,
    leaks,
    network,
)
PROMISES = {module.__name__.rpartition(".")[2]: module.PROMISE for module in MODULES}
