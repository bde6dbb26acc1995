"""All promises by the names of their modules."""

from faults import (
    damage,
    disks,
    finite,
    images,
    kills,
    leaks,
    network,
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
    images,
    finite,
    leaks,
    network,
)
PROMISES = {module.__name__.rpartition(".")[2]: module.PROMISE for module in MODULES}
