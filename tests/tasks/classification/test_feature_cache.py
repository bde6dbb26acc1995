"""Features on disk: they come back as they were, and what was torn or made for something else is noticed."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gpaco.data.samples import Samples
from gpaco.errors import UserError
from gpaco.tasks.classification.feature_cache import BLOCK, Features, fingerprint

ROWS, VIEWS, WIDTH = 2 * BLOCK + 7, 2, 5
VALUES = torch.randn(ROWS, VIEWS, WIDTH, generator=torch.Generator().manual_seed(0))


def features(folder: Path, weights: str = "abc") -> Features:
    return Features(folder, {"weights": weights}, (ROWS, VIEWS, WIDTH))


def blocks(first: int = 0) -> list[Tensor]:
    return list(VALUES[first:].split(BLOCK))


def filled(folder: Path) -> Features:
    store = features(folder)
    store.begin()
    for block in blocks():
        store.append(block)
    return store


def test_features_come_back_in_half_precision_by_image_and_view(tmp_path: Path) -> None:
    filled(tmp_path)
    store = features(tmp_path)
    assert store.done() == len(store) == ROWS
    rows, views = np.array([6, 6, ROWS - 1]), np.array([0, 1, 1])
    taken = store.take(rows, views)
    assert taken.dtype == torch.float32
    assert torch.equal(taken, VALUES[rows, views].half().float())
    assert isinstance(store._values, np.memmap)  # only what is asked for is read
    assert json.loads((store.path / "key.json").read_text())["weights"] == "abc"


def test_a_block_that_was_being_written_at_a_kill_is_written_again(tmp_path: Path) -> None:
    whole = filled(tmp_path).file.read_bytes()
    for length in (0, 1, 3 * VIEWS * WIDTH, len(whole) // 2, len(whole) - 1):
        store = features(tmp_path)
        os.truncate(store.file, length)
        done = store.done()
        assert done % BLOCK == 0
        assert done * store.row_bytes <= length
        store.begin()
        for block in blocks(done):
            store.append(block)
        assert store.file.read_bytes() == whole


def test_another_key_or_shape_is_another_folder(tmp_path: Path) -> None:
    paths = {
        filled(tmp_path).path,
        features(tmp_path, "abd").path,
        Features(tmp_path, {"weights": "abc"}, (9, 2, 5)).path,
    }
    assert len(paths) == 3
    assert features(tmp_path, "abd").done() == 0


@pytest.mark.parametrize("value", [1e5, float("nan"), float("inf")])
def test_features_that_half_precision_cannot_hold_are_refused(tmp_path: Path, value: float) -> None:
    store = features(tmp_path)
    store.begin()
    with pytest.raises(UserError, match=r"half precision.*\n.*cached_views=0"):
        store.append(torch.full((1, VIEWS, WIDTH), value))
    assert store.file.stat().st_size == 0


def test_a_list_is_known_by_its_pixels_or_by_names_sizes_and_times_of_its_files(tmp_path: Path) -> None:
    images = np.zeros((3, 4, 6, 3), np.uint8)
    other = images.copy()
    other[1, 0, 0, 0] = 1
    prints = [
        fingerprint(Samples(np.zeros(3, np.int64), ("a",), images=one))
        for one in (images, images.copy(), other, images.reshape(3, 6, 4, 3))
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    paths = tuple(tmp_path / name for name in ("one", "two"))
    for path in paths:
        path.write_bytes(b"x")
    files = Samples(np.zeros(2, np.int64), ("a",), paths=paths)
    before = fingerprint(files)
    assert fingerprint(files) == before
    os.utime(paths[1], ns=(5, 5))
    assert fingerprint(files) != before
    assert fingerprint(files.subset([1, 0])) != fingerprint(files)
    (tmp_path / "copy").mkdir()
    copies = tuple(shutil.copy2(path, tmp_path / "copy") for path in paths)  # with their sizes and times
    assert fingerprint(Samples(np.zeros(2, np.int64), ("a",), paths=tuple(map(Path, copies)))) != fingerprint(files)
    paths[0].unlink()
    with pytest.raises(UserError, match=r"cannot read .*one"):
        fingerprint(files)
