"""CIFAR pickles and archives and idx files: the right arrays, hostile ones run nothing, bombs are stopped."""

import gzip
import io
import os
import pickle
import struct
import tarfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import drawing, refused, watched

from gpaco.data.reading import read
from gpaco.errors import UserError


def rows(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)


def cifar_100(root: Path, protocol: int = 2) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    names = [b"apple", b"bear", b"cup"]
    for name, labels in (("train", [0, 1, 2, 0, 1, 0]), ("test", [2, 1])):
        content = {b"data": rows(len(labels), len(name)), b"fine_labels": labels, b"coarse_labels": labels}
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": names, b"coarse_label_names": []}, protocol))
    return folder


def archive(path: Path, folder: Path, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        tar.add(folder, folder.name)
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_cifar_100_is_read_from_its_folder_its_parent_and_its_archive(tmp_path: Path, protocol: int) -> None:
    folder = cifar_100(tmp_path / "x", protocol)
    packed = archive(tmp_path / "cifar-100-python.tar.gz", folder)
    plain = archive(tmp_path / "c.tar", folder, "w")
    for path in (folder, folder.parent, packed, plain):
        splits = watched(path)
        assert splits.reader == "CIFAR-100"
        assert splits.classes == ("apple", "bear", "cup")
        assert splits.train.counts.tolist() == [3, 2, 1]
        assert splits.train.names[4] == "train/4"
        expected = rows(6, 5).reshape(6, 3, 32, 32).transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(splits.train.images, expected)
        assert splits.test is not None
        assert splits.test.labels.tolist() == [2, 1]
        assert splits.notes == ("6 training and 2 test images, published are 50000 and 10000",)


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
    assert test is not None
    assert test.labels.tolist() == [1, 2]
    np.testing.assert_array_equal(test.load(1)[0, 0], rows(2, 0)[1].reshape(3, 32, 32)[:, 0, 0])


class _Runs:
    """Unpickled by an ordinary unpickler, this calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def hostile(canary: Path) -> dict[str, bytes]:
    touch = f"open({str(canary)!r}, 'w')"
    command = f"touch {canary}"
    payloads = {
        f"{name} {protocol}": pickle.dumps({b"data": _Runs(function, *arguments)}, protocol)
        for protocol in (0, 2, 4, 5)
        for name, function, arguments in (
            ("system", os.system, (command,)),
            ("eval", eval, (touch,)),
            ("exec", exec, (touch,)),
            ("open", open, (str(canary), "w")),
            ("mkdir", os.mkdir, (str(canary),)),
            ("numpy", np.save, (str(canary), np.zeros(1))),
            ("getattr", getattr, ("", "format")),
        )
    }
    text = command.encode()
    payloads |= {
        "inst": b"(S'" + text + b"'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nS'" + text + b"'\no.",
        "newobj": b"\x80\x02cos\nsystem\nU" + bytes([len(text)]) + text + b"\x85\x81.",
        "dotted": b"\x80\x04\x8c\x05numpy\x8c\x0bsys.modules\x93.",
        "submodule": b"cnumpy.core.multiarray\n__dict__\n.",
        "persistent": b"Pos.system\n.",
        "extension": b"\x80\x02\x82\x01.",
        "our own names": b"cgpaco.data.cifar\nread_cifar\n.",
        "change a stand-in": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n}(U\x08__code__K\x01uN\x86b.",
        "call a name": b"\x80\x02cnumpy\nndarray\nK\x05\x85R.",
        "memory": b"\x80\x02}r\xff\xff\xff\xff.",
        "long array": b"\x80\x05\x96" + struct.pack("<Q", 1 << 46) + b"x.",
        "object array": pickle.dumps({b"data": np.array([_Runs(os.system, command)], object)}),
        "deep": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
    }
    return payloads


def test_hostile_pickles_run_nothing(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    folder = cifar_100(tmp_path / "x")
    for name, payload in hostile(canary).items():
        for file in ("meta", "train"):
            good = (folder / file).read_bytes()
            (folder / file).write_bytes(payload)
            error = refused(folder)
            assert repr(file) in error.cause, name
            assert not canary.exists(), name
            (folder / file).write_bytes(good)
    assert watched(folder).reader == "CIFAR-100"
    assert "asks for 'posix.system'" in _with(folder, "meta", pickle.dumps(_Runs(os.system, "x"))).cause


def test_a_pickle_makes_no_pixels_that_are_not_in_the_file(tmp_path: Path) -> None:
    folder = cifar_100(tmp_path / "x")
    from_number = _Runs(np._core.numeric._frombuffer, 3072 * 2000, np.dtype("u1"), (2000, 3072), "C")
    black = pickle.dumps({b"data": from_number, b"fine_labels": [0] * 2000})
    long = b"\x80\x05\x96" + struct.pack("<Q", 1 << 28) + b"x."
    for payload in (black, long):
        tracemalloc.start()
        try:
            assert "'train' is not a CIFAR file" in _with(folder, "train", payload).cause
            assert tracemalloc.get_traced_memory()[1] < 3 << 20
        finally:
            tracemalloc.stop()


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
        {b"data": np.asfortranarray(rows(2, 0))},
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
    with open(folder / "test", "wb") as file:
        file.truncate(1 << 34)
    with pytest.raises(UserError, match="more than the limit"):
        read(folder)


def test_a_class_that_no_training_image_has_is_refused_in_cifar_too(tmp_path: Path) -> None:
    folder = cifar_100(tmp_path / "x")
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"a", b"b", b"c", b"lost"]}))
    assert "'lost'" in refused(folder).cause
    assert watched(folder, allow_empty_classes=True).train.counts.tolist() == [3, 2, 1, 0]


def tar_with(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.name = name
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                tar.addfile(info)
    return path


def link(target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


def test_archives_unpack_nothing_and_links_in_them_lead_nowhere(tmp_path: Path) -> None:
    folder = cifar_100(tmp_path / "x")
    files = {f"cifar-100-python/{name}": (folder / name).read_bytes() for name in ("train", "test", "meta")}
    place = tmp_path / "archives"
    place.mkdir()
    outside = {"../../evil": b"x", "/tmp/evil": b"x", "cifar-100-python/../../evil": b"x", "evil.py": b"x"}  # noqa: S108
    extra = tar_with(place / "extra.tar.gz", outside | {"l": link("/etc/passwd", tarfile.SYMTYPE)} | files)
    assert watched(extra).reader == "CIFAR-100"
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE):
        members = files | {"cifar-100-python/train": link("/etc/passwd", kind)}
        error = refused(tar_with(place / "link.tar.gz", members))
        assert "is not a file but a link or folder" in error.cause
    assert "is missing" in refused(tar_with(place / "part.tar.gz", dict(list(files.items())[:2]))).cause
    assert "not an archive of CIFAR" in refused(tar_with(place / "other.tar.gz", outside)).cause
    assert not list(tmp_path.rglob("evil*"))


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    whole = archive(tmp_path / "c.tar.gz", cifar_100(tmp_path / "x")).read_bytes()
    path = tmp_path / "a" / "c.tar.gz"
    path.parent.mkdir()
    for content in (
        b"",
        b"hello",
        whole[: len(whole) // 2],
        whole[:-4],
        whole[:-8] + b"\0" * 8,
        whole[:3000] + b"x" * 500 + whole[3500:],
    ):
        path.write_bytes(content)
        assert str(path) in refused(path).cause or "c.tar.gz" in refused(path).cause


def test_bombs_in_archives_are_stopped(tmp_path: Path) -> None:
    started = time.perf_counter()
    zeros = gzip.compress(bytes(1 << 24), 1)
    header = tarfile.TarInfo("big")
    header.size = 1 << 34
    bomb = tmp_path / "bomb.tar.gz"
    bomb.write_bytes(gzip.compress(header.tobuf()) + zeros * 64)  # 1 GB of zeros in 5 MB
    assert "more than 400 MB" in refused(bomb).cause
    header.name = "cifar-100-python/train"
    bomb.write_bytes(gzip.compress(header.tobuf()) + zeros * 64)
    assert "has 16384 MB" in refused(bomb).cause
    bomb.write_bytes(gzip.compress(b"".join(tarfile.TarInfo(str(i)).tobuf() for i in range(2000)), 1))
    assert "more than 1000 members" in refused(bomb).cause
    assert time.perf_counter() - started < 10


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


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mark", ["-", "."])
def test_idx_files_are_read_packed_or_not(tmp_path: Path, packed: bool, mark: str) -> None:
    folder = idx_files(tmp_path / "MNIST" / "raw", packed=packed, mark=mark)
    for path in (folder, folder.parent, next(folder.glob("train-images*"))):
        splits = watched(path)
        assert splits.reader == "idx files"
        assert splits.classes == ("0", "1", "2")
        assert splits.train.labels.tolist() == [0, 1, 2, 1]
        assert splits.train.images is not None
        assert splits.train.images.shape == (4, 5, 4, 3)
        expected = np.random.default_rng(0).integers(0, 256, (4, 5, 4), np.uint8)
        assert (splits.train.images == expected[..., None]).all()
        assert splits.test is not None
        assert splits.test.names == ("test/0", "test/1")


def test_idx_files_without_a_test_part_are_read(tmp_path: Path) -> None:
    folder = idx_files(tmp_path / "d")
    for file in folder.glob("t10k*"):
        file.unlink()
    assert watched(folder).test is None
    (folder / "train-labels-idx1-ubyte").unlink()
    assert "not its labels" in refused(folder).cause


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda data: b"", "does not start as"),
        (lambda data: b"\0\0\x0d\x03" + data[4:], "does not start as"),
        (lambda data: data[:-1], "its header says 80 bytes, there are 79"),
        (lambda data: data + b"x", "there are more"),
        (lambda data: data[:4] + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1) + data[16:], "its header says"),
        (lambda data: data[:4] + struct.pack(">3I", 0, 5, 4), "its header says"),
        (lambda data: data[:4] + struct.pack(">3I", 3, 5, 4) + data[16:-20], "3 images but"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_idx_files_are_refused(
    tmp_path: Path, packed: bool, change: Callable[[bytes], bytes], cause: str
) -> None:
    folder = idx_files(tmp_path / "d", packed=packed)
    path = next(folder.glob("train-images*"))
    data = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    path.write_bytes(gzip.compress(change(data)) if packed else change(data))
    assert cause in refused(folder).cause


def test_packed_idx_files_that_break_or_burst_are_stopped(tmp_path: Path) -> None:
    folder = idx_files(tmp_path / "d", packed=True)
    path = folder / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for content in (b"hello", whole[:-12], whole[:-8] + b"\0" * 8):
        path.write_bytes(content)
        assert "damaged" in refused(folder).cause
    path.write_bytes(gzip.compress(idx_bytes(drawing()[:4, :5])) + gzip.compress(bytes(1 << 24), 1) * 64)
    started = time.perf_counter()
    assert "there are more" in refused(folder).cause
    assert time.perf_counter() - started < 2


def test_gaps_in_idx_labels_are_refused_unless_allowed(tmp_path: Path) -> None:
    folder = idx_files(tmp_path / "d")
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.array([0, 3, 2, 2], np.uint8)))
    assert "'1'" in refused(folder).cause
    assert watched(folder, allow_empty_classes=True).train.counts.tolist() == [1, 0, 2, 1]
