"""Checkpoints that identify their step, folder contents, full disks, and users without permissions."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from gpaco.training import checkpoint
from gpaco.training.checkpoint import save


def parts(step: int, size: int = 50) -> dict[str, dict[str, Tensor]]:
    """Return tensors that identify their step."""
    return {
        "model": {"weight": torch.full((size, 3), float(step)), "count": torch.tensor(step)},
        "optimizer": {"0.momentum": torch.arange(size) + step},
    }


def assert_is_step(found: checkpoint.Checkpoint, step: int, size: int = 50) -> None:
    assert found.step == step
    assert found.state == {"epoch": step, "note": "é"}
    for name, part in parts(step, size).items():
        assert set(found.tensors[name]) == set(part)
        assert all(torch.equal(found.tensors[name][key], value) for key, value in part.items())


def save_step(folder: Path, step: int, size: int = 50) -> Path:
    return save(folder, step, parts(step, size), {"epoch": step, "note": "é"})


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size of files, which acts like a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def without_rights() -> Iterator[None]:
    """Act as an ordinary user if this is root, who may do anything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
