"""Features on disk: they come back as they were, and what was torn, damaged or made for something else is noticed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gpaco.data.samples import Samples
from gpaco.errors import UserError
from gpaco.features import Cache, digest

KEY = {"weights": "abc", "views": ["plain", "plain"]}
VIEWS, WIDTH, PART = 2, 5, 4


def digests(count: int, first: int = 0) -> list[bytes]:
    return [bytes([k]) * 32 for k in range(first, first + count)]


def features(count: int, first: int = 0) -> Tensor:
    return torch.randn(count, VIEWS, WIDTH, generator=torch.Generator().manual_seed(first))


def cache(folder: Path, key: dict[str, object] = KEY) -> Cache:
    return Cache(folder, key, VIEWS, WIDTH)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Three parts of four images."""
    store = cache(tmp_path)
    store.begin()
    for first in (0, 4, 8):
        store.add(digests(PART, first), features(PART, first))
    return tmp_path


def flip_byte(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_features_come_back_in_half_precision_by_image_and_view(filled: Path) -> None:
    store = cache(filled)
    rows = store.find([*digests(2, 6), *digests(1, 1), *digests(1, 50)])
    assert rows.tolist() == [6, 7, 1, -1]
    taken = store.take(np.array([6, 6, 1]), np.array([0, 1, 1]))
    assert taken.dtype == torch.float32
    expected = torch.stack([features(4, 4)[2, 0], features(4, 4)[2, 1], features(4)[1, 1]])
    assert torch.equal(taken, expected.half().float())


def test_only_rows_that_are_asked_for_are_read_into_memory(filled: Path) -> None:
    rows = cache(filled)._rows
    assert isinstance(rows.base, np.memmap)


def test_a_part_that_was_being_written_at_a_kill_is_written_over(filled: Path) -> None:
    path = cache(filled).path
    whole = (path / "rows.bin").read_bytes(), (path / "parts.jsonl").read_bytes()
    for torn in (b'{"rows": 4, "sha', b""):
        (path / "rows.bin").write_bytes(whole[0] + b"half of a part")
        (path / "parts.jsonl").write_bytes(whole[1] + torn)
        store = cache(filled)
        assert store.written == 12
        assert not store.damaged
        store.begin()
        store.add(digests(PART, 20), features(PART, 20))
        again = cache(filled)
        assert again.find(digests(PART, 20)).tolist() == [12, 13, 14, 15]
        assert torch.equal(again.take(np.array([13]), np.array([0]))[0], features(4, 20)[1, 0].half().float())


@pytest.mark.parametrize("place", ["digest", "features"])
def test_a_flipped_bit_makes_the_images_of_its_part_missing_and_no_others(filled: Path, place: str) -> None:
    store = cache(filled)
    flip_byte(store.path / "rows.bin", 5 * store.kind.itemsize + (3 if place == "digest" else 40))
    damaged = cache(filled)
    assert damaged.damaged == [1]
    assert damaged.find(digests(12)).tolist() == [0, 1, 2, 3, -1, -1, -1, -1, 8, 9, 10, 11]
    damaged.begin()
    damaged.add(digests(PART, 4), features(PART, 4))
    assert cache(filled).find(digests(12)).tolist() == [0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11]


def test_a_file_that_lost_its_end_misses_the_parts_that_were_there(filled: Path) -> None:
    store = cache(filled)
    rows = store.path / "rows.bin"
    rows.write_bytes(rows.read_bytes()[: 9 * store.kind.itemsize])
    short = cache(filled)
    assert short.damaged == [2]
    short.begin()
    short.add(digests(PART, 8), features(PART, 8))
    again = cache(filled)
    assert (again.find(digests(12)) >= 0).all()
    taken = again.take(again.find(digests(PART, 8)), np.zeros(PART, int))
    assert torch.equal(taken, features(PART, 8)[:, 0].half().float())
    rows.unlink()
    assert cache(filled).damaged == [0, 1, 2, 3]


def test_another_key_is_another_cache_and_its_files_are_no_good_here(filled: Path) -> None:
    other = cache(filled, KEY | {"weights": "abd"})
    assert other.path != cache(filled).path
    assert other.written == 0
    other.begin()
    for name in ("rows.bin", "parts.jsonl"):
        shutil.copy(cache(filled).path / name, other.path / name)
    foreign = cache(filled, KEY | {"weights": "abd"})
    assert foreign.damaged == [0, 1, 2]
    assert not foreign.places


def test_a_key_that_was_changed_on_disk_is_an_error(filled: Path) -> None:
    path = cache(filled).path / "key.json"
    path.write_text(path.read_text().replace("abc", "xyz"))
    with pytest.raises(UserError, match=r"key\.json differs\ndelete"):
        cache(filled)


@pytest.mark.parametrize("line", ["no JSON", '{"rows": "many", "sha256": ""}', "[]", '{"rows": 3}'])
def test_a_log_that_makes_no_sense_is_an_error(filled: Path, line: str) -> None:
    path = cache(filled).path / "parts.jsonl"
    path.write_text(f"{line}\n" + path.read_text())
    with pytest.raises(UserError, match=r"parts\.jsonl is damaged\ndelete"):
        cache(filled)


@pytest.mark.parametrize("value", [1e5, float("nan"), float("inf")])
def test_features_that_half_precision_cannot_hold_are_refused(tmp_path: Path, value: float) -> None:
    store = cache(tmp_path)
    store.begin()
    with pytest.raises(UserError, match=r"half precision.*\n.*cached_views=0"):
        store.add(digests(1), torch.full((1, VIEWS, WIDTH), value))
    assert cache(tmp_path).written == 0


def test_the_log_names_parts_and_their_sums(filled: Path) -> None:
    rows = [json.loads(line) for line in (cache(filled).path / "parts.jsonl").read_text().splitlines()]
    assert [row["rows"] for row in rows] == [4, 4, 4]
    assert len({row["sha256"] for row in rows}) == 3


def test_an_image_is_known_by_its_pixels_or_by_its_file(tmp_path: Path) -> None:
    images = np.zeros((3, 4, 6, 3), np.uint8)
    images[1, 0, 0, 0] = 1
    samples = Samples(np.zeros(3, np.int64), ("a",), images=images)
    assert digest(samples, 0) == digest(samples, 2) != digest(samples, 1)
    turned = Samples(np.zeros(3, np.int64), ("a",), images=images.reshape(3, 6, 4, 3))
    assert digest(turned, 0) != digest(samples, 0)
    for name, content in (("one", b"x"), ("two", b"x"), ("three", b"y")):
        (tmp_path / name).write_bytes(content)
    files = Samples(np.zeros(4, np.int64), ("a",), paths=tuple(tmp_path / n for n in ("one", "two", "three", "gone")))
    assert digest(files, 0) == digest(files, 1) != digest(files, 2)
    with pytest.raises(UserError, match=r"cannot read .*gone"):
        digest(files, 3)
