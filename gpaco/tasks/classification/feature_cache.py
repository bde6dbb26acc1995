"""Features of a list of images, in a file that grows block by block; its length says how many are done.

The name of a folder is a hash of everything that its features depend on. It has

    key.json      these dependencies: model, SHA-256 of its weights, views, size, mean and std, images
    features.f16  the features of each image, (views, width) in half precision
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpaco.data.members import Member
from gpaco.data.samples import Samples
from gpaco.data.views.views import View
from gpaco.errors import UserError
from gpaco.system.faults import explained
from gpaco.system.files import write_atomic

Indices = NDArray[np.int64]
BLOCK = 64  # images embedded and written at a time


def fingerprint(samples: Samples) -> str:
    """Return a SHA-256 of the pixels of images in memory, or of the paths, sizes and modification times of files."""
    digest = hashlib.sha256()
    if samples.paths is None:
        images = np.ascontiguousarray(samples.images)
        digest.update(f"{images.shape}".encode())
        digest.update(images.data)
        return digest.hexdigest()
    for name, path in zip(samples.names, samples.paths, strict=True):
        if isinstance(path, Member):
            where = [os.path.realpath(path.archive), path.name, path.offset]
            digest.update(json.dumps([*where, path.size, path.modified]).encode())
            continue
        try:
            found = os.stat(path)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"cannot read {name}: {reason}", "check that the file exists") from error
        digest.update(json.dumps([os.path.abspath(path), found.st_size, found.st_mtime_ns]).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Features:
    """The features of some images, in order.

    Args:
        folder: the folder of all features; these get their own folder in it.
        key: everything that the features depend on, ready for JSON.
        shape: number of images, views per image, features per view.
    """

    folder: Path
    key: Mapping[str, Any]
    shape: tuple[int, int, int]

    def __len__(self) -> int:
        return self.shape[0]

    @cached_property
    def text(self) -> str:
        return json.dumps({**self.key, "shape": self.shape}, indent=1, sort_keys=True)

    @property
    def path(self) -> Path:
        return self.folder / hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def file(self) -> Path:
        return self.path / "features.f16"

    @property
    def row_bytes(self) -> int:
        return 2 * self.shape[1] * self.shape[2]

    def done(self) -> int:
        """Return the number of images on disk: all, or those in complete blocks."""
        rows = self.file.stat().st_size // self.row_bytes if self.file.exists() else 0
        return len(self) if rows >= len(self) else rows // BLOCK * BLOCK

    def begin(self) -> None:
        """Prepare for `append`. Only the process that holds the lock may call either."""
        with explained(f"cannot write features to {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path / "key.json", self.text)
            self.file.touch()
            os.truncate(self.file, self.done() * self.row_bytes)  # drop a block whose writing was interrupted

    def append(self, block: Tensor) -> None:
        """Write the features of the next images, (B, views, width), and sync them to disk."""
        half = block.half()
        if not bool(half.isfinite().all()):
            raise UserError(
                f"features of this model are too large for half precision: up to {block.abs().max():.3g}",
                "turn off the cache: --set train.cached_views=0",
            )
        with explained(f"cannot write features to {self.path}"), self.file.open("ab") as file:
            file.write(half.numpy().tobytes())
            file.flush()
            os.fsync(file.fileno())

    def take(self, rows: Indices, views: Indices) -> Tensor:
        """Return one view of each row, (N, width) in float32."""
        return torch.from_numpy(self._values[rows, views]).float()

    @cached_property
    def _values(self) -> NDArray[np.float16]:
        return np.memmap(self.file, np.float16, "r", shape=self.shape)  # reads only the rows that are used


@dataclass(frozen=True)
class Vectors:
    """One vector per sample, for any view; replaces a backbone that embeds images (see `Frozen`)."""

    values: Tensor  # (N, F)
    device: torch.device

    @property
    def width(self) -> int:
        return self.values.shape[1]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Indices, views: Indices) -> Tensor:
        return self.values[torch.from_numpy(rows)]

    def digests(self) -> list[str]:
        """Return the SHA-256 of each vector."""
        return [hashlib.sha256(row.tobytes()).hexdigest() for row in self.values.cpu().numpy()]

    def of_tested(self, samples: Samples) -> "Vectors":
        return self

    def of_views(self, samples: Samples, views: list[View]) -> "Vectors":
        return self


Rows = Features | Vectors
