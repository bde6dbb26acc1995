"""CIFAR pickles and archives and idx files: the right arrays, and no code in a pickle is run."""

import gzip
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from helpers.images import refused, watched

from gpaco.data.readers.read import read
from gpaco.errors import UserError


def rows(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)


def cifar_100(root: Path) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    names = [b"apple", b"bear", b"cup"]
    for name, labels in (("train", [0, 1, 2, 0, 1, 0]), ("test", [2, 1])):
        content = {b"data": rows(len(labels), len(name)), b"fine_labels": labels, b"coarse_labels": labels}
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": names}))
    return folder


def archive(path: Path, folder: Path) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, folder.name)
    return path


def test_cifar_100_is_read_from_its_folder_its_parent_and_its_archive(tmp_path: Path) -> None:
    folder = cifar_100(tmp_path / "x")
    packed = archive(tmp_path / "cifar-100-python.tar.gz", folder)
    for path in (folder, folder.parent, packed):
        splits = watched(path)
        assert splits.reader == "CIFAR-100"
        assert splits.classes == ("apple", "bear", "cup")
        assert splits.train.counts.tolist() == [3, 2, 1]
        assert splits.train.names[4] == "train/4"
        expected = rows(6, 5).reshape(6, 3, 32, 32).transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(splits.train.images, expected)
        assert splits.test.labels.tolist() == [2, 1]
        assert splits.notes[-1] == "6 training and 2 test images; the published set has 50000 and 10000"
        assert (len(splits.notes) == 2) == (path == packed)
    assert "its MD5 is not eb9058c3a382ffc7106e4002c42a8d85" in splits.notes[0]


def test_cifar_10_is_read_in_the_order_of_its_batches(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        content = {"data": rows(2, number), "labels": [number % 2, 1]}
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["cat", "dog"]}))
    splits = watched(tmp_path)
    assert splits.reader == "CIFAR-10"
    assert splits.train.labels.tolist() == [0, 1, 1, 1, 0, 1, 1, 1, 0, 1]
    np.testing.assert_array_equal(splits.train.load(9)[0, 1], rows(2, 4)[1].reshape(3, 32, 32)[:, 0, 1])
    (folder / "data_batch_3").unlink()
    assert "'data_batch_3' is missing" in refused(tmp_path).cause


def test_the_pickles_of_python_2_are_read(tmp_path: Path) -> None:
    """The published files: protocol 2 of Python 2, with text as bytes and the array module of an old numpy."""
    folder = cifar_100(tmp_path)
    data = rows(2, 0).tobytes()
    parts = [
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87R",
        b"(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nq\x05U\x02u1K\x00K\x01\x87R",
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<i", len(data)) + data,
        b"tbU\x0bfine_labelsq\x06]q\x07(K\x01K\x02eu.",
    ]
    (folder / "test").write_bytes(b"".join(parts))
    test = read(folder).test
    assert test.labels.tolist() == [1, 2]
    np.testing.assert_array_equal(test.load(1)[0, 0], rows(2, 0)[1].reshape(3, 32, 32)[:, 0, 0])


class _Runs:
    """Unpickled by an ordinary unpickler, this calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    folder, canary = cifar_100(tmp_path / "x"), tmp_path / "canary"
    payloads = [
        pickle.dumps({"data": _Runs(function, *arguments)}, protocol)
        for protocol in (0, 2, 5)
        for function, arguments in (
            (os.mkdir, (str(canary),)),
            (eval, (f"open({str(canary)!r}, 'w')",)),
            (np.save, (str(canary), np.zeros(1))),
        )
    ]
    payloads += [
        pickle.dumps({b"data": np.array([_Runs(os.mkdir, str(canary))], object)}),
        b"\x80\x04\x8c\x05numpy\x8c\x0bsys.modules\x93.",
        b"cgpaco.data.cifar\nread_cifar\n.",
    ]
    for payload in payloads:
        assert "which no array needs" in _with(folder, "train", payload).cause
        assert not canary.exists()
    assert "refers to posix.mkdir" in _with(folder, "meta", payloads[0]).cause


def _with(folder: Path, file: str, content: bytes) -> UserError:
    good = (folder / file).read_bytes()
    (folder / file).write_bytes(content)
    try:
        return refused(folder)
    finally:
        (folder / file).write_bytes(good)


def test_cifar_files_that_are_wrong_are_refused_by_name(tmp_path: Path) -> None:
    folder = cifar_100(tmp_path / "x")
    good = {b"data": rows(2, 0), b"fine_labels": [0, 1]}
    for change in (
        {b"data": rows(2, 0).astype(np.int32)},
        {b"data": rows(2, 0)[:, :100]},
        {b"data": b"text"},
        {b"data": None},
        {b"fine_labels": [0]},
        {b"fine_labels": [0, 3]},
        {b"fine_labels": [0, -1]},
        {b"fine_labels": ["0", "1"]},
        {b"fine_labels": None},
    ):
        assert "'train' is not a CIFAR file" in _with(folder, "train", pickle.dumps(good | change)).cause
    assert "'meta' is not a CIFAR file" in _with(folder, "meta", pickle.dumps({})).cause
    assert "'meta' is not a CIFAR file" in _with(folder, "meta", pickle.dumps([1])).cause
    whole = (folder / "train").read_bytes()
    assert "'train' is not a CIFAR file" in _with(folder, "train", whole[:-50]).cause
    assert "'test' is not a CIFAR file" in _with(folder, "test", b"").cause


def test_a_class_that_no_training_image_has_is_refused_in_cifar_too(tmp_path: Path) -> None:
    folder = cifar_100(tmp_path / "x")
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"a", b"b", b"c", b"lost"]}))
    assert "'lost'" in refused(folder).cause
    assert watched(folder, allow_empty_classes=True).train.counts.tolist() == [3, 2, 1, 0]


def test_archives_that_are_damaged_or_hold_something_else_are_refused(tmp_path: Path) -> None:
    folder = cifar_100(tmp_path / "x")
    whole = archive(tmp_path / "c.tar.gz", folder).read_bytes()
    path = tmp_path / "a" / "c.tar.gz"
    path.parent.mkdir()
    for content in (b"", b"hello", whole[: len(whole) // 2], whole[:3000] + b"x" * 500 + whole[3500:]):
        path.write_bytes(content)
        assert "is damaged or not an archive" in refused(path).cause
    (folder / "meta").unlink()
    assert "'meta' is missing" in refused(archive(path, folder)).cause
    (folder / "test").unlink()
    assert "no files of CIFAR-10 or CIFAR-100" in refused(archive(path, folder)).cause


def idx_bytes(array: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def idx_files(folder: Path, *, packed: bool = False, mark: str = "-") -> Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, labels in (("train", [0, 1, 2, 1]), ("t10k", [2, 0])):
        images = rng.integers(0, 256, (len(labels), 5, 4), np.uint8)
        for name, array in (
            (f"{part}-images{mark}idx3-ubyte", images),
            (f"{part}-labels{mark}idx1-ubyte", np.array(labels, np.uint8)),
        ):
            data = idx_bytes(array)
            (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)
    return folder


def test_idx_files_are_read_packed_or_not(tmp_path: Path) -> None:
    for packed, mark in product((False, True), "-."):
        folder = idx_files(tmp_path / f"{packed}{mark}" / "raw", packed=packed, mark=mark)
        for path in (folder, folder.parent, next(folder.glob("train-images*"))):
            splits = watched(path)
            assert splits.reader == "idx files"
            assert splits.classes == ("0", "1", "2")
            assert splits.train.labels.tolist() == [0, 1, 2, 1]
            expected = np.random.default_rng(0).integers(0, 256, (4, 5, 4), np.uint8)
            np.testing.assert_array_equal(splits.train.images, np.repeat(expected[..., None], 3, axis=3))
            assert splits.test.names == ("test/0", "test/1")


def test_idx_files_without_a_test_part_are_read(tmp_path: Path) -> None:
    folder = idx_files(tmp_path / "d")
    for file in folder.glob("t10k*"):
        file.unlink()
    assert watched(folder).test is None
    (folder / "train-labels-idx1-ubyte").unlink()
    assert "no labels of 'train'" in refused(folder).cause


def test_damaged_idx_files_are_refused(tmp_path: Path) -> None:
    folder = idx_files(tmp_path / "d")
    path = folder / "train-images-idx3-ubyte"
    data = path.read_bytes()
    for content, cause in (
        (b"", "its header does not say uint8"),
        (b"\0\0\x0d\x03" + data[4:], "its header does not say uint8"),
        (data[:-1], "is not an idx file, or damaged"),
        (data + b"x", "is not an idx file, or damaged"),
        (data[:4] + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1) + data[16:], "is not an idx file, or damaged"),
        (data[:4] + struct.pack(">3I", 3, 5, 4) + data[16:-20], "has 3 images but 4 labels of 'train'"),
    ):
        path.write_bytes(content)
        assert cause in refused(folder).cause
    path.unlink()
    packed = gzip.compress(data)
    for content in (b"hello", packed[:-12], packed[:-8] + b"\0" * 8):
        path.with_suffix(".gz").write_bytes(content)
        path.with_suffix(".gz").rename(folder / "train-images-idx3-ubyte.gz")
        assert "is not an idx file, or damaged" in refused(folder).cause


def test_gaps_in_idx_labels_are_refused_unless_allowed(tmp_path: Path) -> None:
    folder = idx_files(tmp_path / "d")
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.array([0, 3, 2, 2], np.uint8)))
    assert "'1'" in refused(folder).cause
    assert watched(folder, allow_empty_classes=True).train.counts.tolist() == [1, 0, 2, 1]
