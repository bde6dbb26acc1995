"""What a frozen backbone said about images, kept on disk: each image is found by the digest of its bytes.

A cache is a folder named after all that its numbers depend on:

    key.json     the same in words: model, SHA-256 of its weights, views, size, mean and deviation
    rows.bin     for each image its digest and its features, (views, width) in half precision
    parts.jsonl  for each part of rows how many they are and their SHA-256, written when the part is on disk

Rows are only ever added. What a process left behind that was killed between the two files is written over by the next;
a part that is not what was written is passed over, and its images count as missing.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpaco.data.samples import Samples
from gpaco.errors import UserError
from gpaco.faults import explained
from gpaco.files import append_jsonl, trim_jsonl, write_atomic

Indices = NDArray[np.int64]
_DIGEST = 32  # bytes of a SHA-256


def digest(samples: Samples, i: int) -> bytes:
    """SHA-256 of an image: of its file, or of its pixels where they are in memory."""
    if samples.paths is not None:
        try:
            return hashlib.sha256(samples.paths[i].read_bytes()).digest()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"cannot read {samples.names[i]}: {reason}", "see that the file is there") from error
    image = np.ascontiguousarray(samples.load(i))
    return hashlib.sha256(f"{image.shape}".encode() + image.tobytes()).digest()


class Cache:
    """Features of images, read from and added to a folder below `folder`.

    Args:
        key: everything that the features depend on beside the image, ready for JSON.
        views: how many views of each image.
        width: features of a view.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any], views: int, width: int) -> None:
        self.key = json.dumps({**key, "views_of_an_image": views, "width": width}, indent=1, sort_keys=True)
        self.path = folder / hashlib.sha256(self.key.encode()).hexdigest()[:16]
        self.kind = np.dtype([("image", np.uint8, _DIGEST), ("features", "<f2", (views, width))])
        self.refresh()

    def refresh(self) -> None:
        """Look at what is on disk now."""
        self.written = 0  # rows that the log knows of
        self.places: dict[bytes, int] = {}  # the row of each image
        self.damaged: list[int] = []  # numbers of the parts that are not what was written
        self._rows = np.empty(0, self.kind)
        if not (self.path / "key.json").exists():
            return
        if (self.path / "key.json").read_bytes() != self.key.encode():
            raise UserError(f"{self.path} is not what its name says: its key.json differs", "delete this folder")
        parts, file = self._log(), self.path / "rows.bin"
        whole = file.stat().st_size // self.kind.itemsize if file.exists() else 0
        rows = np.memmap(file, self.kind, "r", shape=(whole,)) if whole else self._rows
        for number, (count, expected) in enumerate(parts):
            part = rows[self.written : self.written + count]
            if len(part) == count and self._digest(part) == expected:
                self.places.update({row.tobytes(): self.written + k for k, row in enumerate(part["image"])})
            else:
                self.damaged.append(number)
            self.written += count
        self._rows = np.asarray(rows)  # still the file: only rows that are asked for are read

    def find(self, digests: list[bytes]) -> Indices:
        """The row of each image, -1 where there is none."""
        return np.array([self.places.get(one, -1) for one in digests], np.int64)

    def take(self, rows: Indices, views: Indices) -> Tensor:
        """Features (N, width) in float32: of each row one view."""
        return torch.from_numpy(self._rows["features"][rows, views]).float()

    def begin(self) -> None:
        """Make ready for `add`: one process may, the one that holds the lock."""
        with explained(f"cannot write features to {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path / "key.json", self.key)
        trim_jsonl(self.path / "parts.jsonl", lambda row: True)  # a line without its end was being written at a kill
        self.refresh()

    def add(self, digests: list[bytes], features: Tensor) -> None:
        """Write a part: one row (views, width) for each digest. On disk when this returns; `refresh` shows it."""
        part = np.empty(len(digests), self.kind)
        part["image"] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _DIGEST)
        with np.errstate(over="ignore"):
            part["features"] = features.numpy()
        if not np.isfinite(part["features"]).all():
            raise UserError(
                f"features of this model do not fit half precision: up to {features.abs().max():.3g}",
                "do without the cache: --set train.cached_views=0",
            )
        with explained(f"cannot write features to {self.path}"):
            descriptor = os.open(self.path / "rows.bin", os.O_WRONLY | os.O_CREAT, 0o666)
            with os.fdopen(descriptor, "wb") as file:
                file.seek(self.written * self.kind.itemsize)
                file.write(part.tobytes())
                file.flush()
                os.fsync(file.fileno())
        append_jsonl(self.path / "parts.jsonl", {"rows": len(part), "sha256": self._digest(part)})
        self.written += len(part)

    def _digest(self, part: NDArray[Any]) -> str:
        """With the key in it: a part of another cache is a damaged one here."""
        state = hashlib.sha256(self.key.encode())
        state.update(part.tobytes())
        return state.hexdigest()

    def _log(self) -> list[tuple[int, str]]:
        path = self.path / "parts.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        try:
            parts = [json.loads(line) for line in lines]
            return [(abs(int(part["rows"])), str(part["sha256"])) for part in parts]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(f"{path} is damaged", f"delete {self.path}: its images are embedded again") from error
