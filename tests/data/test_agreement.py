"""Two processes and their data: the same, or an error in both; and files that are read by one of them only."""

import shutil
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.images import class_folders
from helpers.ranks import Results, run_ranks

import gpaco
from gpaco.data import inspection
from gpaco.data.agreement import check_same_everywhere
from gpaco.data.samples import Samples, Splits
from gpaco.errors import UserError
from gpaco.system.progress import quiet


def splits(train: int = 9, name: str = "owl") -> Splits:
    def part(number: int) -> Samples:
        return Samples(np.arange(number) % 2, ("cat", name), images=np.zeros((number, 4, 4, 3), np.uint8))

    return Splits(part(train), None, part(4), "memory")


def scenario() -> Results:
    second, words = dist.get_rank() == 1, []
    check_same_everywhere(splits())
    good = splits()
    renamed = replace(good, test=replace(good.train.subset(range(4)), names=("a", "b", "c", "d")))
    for different in (splits(train=6), splits(name="dog"), replace(good, test=None), renamed):
        with pytest.raises(UserError, match="process 1 has different data than process 0") as error:
            check_same_everywhere(different if second else good)
        words.append(error.value.cause.partition(": ")[2])
    assert words == [
        "6 train images, process 0 has 9",
        "different classes",
        "0 test images, process 0 has 4",
        "different test images",
    ]

    read: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        files = Samples(np.zeros(9, np.int64), ("a",), paths=tuple(Path(folder, f"{k}.png") for k in range(9)))
        inspection._fault = lambda path: read.append(int(path.stem)) or ("torn" if path.stem == "5" else None)  # type: ignore
        assert inspection.find_bad(files, shared=True) == [(5, "torn")]
        for k, path in enumerate(files.paths or ()):
            path.write_bytes(bytes([k]))
        dist.barrier()
        assert inspection.digests(files, shared=True) == inspection.digests(files)
    return {"read": torch.tensor(sorted(read))}


def trained(home: Path) -> Results:
    """Train on copies of which the second process has one file less; then on one with other bytes under the same names.

    Bytes decide what is held out: copies of an image stay in training.
    """
    second = dist.get_rank() == 1
    folder = home / str(dist.get_rank())
    class_folders(folder / "train", {"cat": 20, "dog": 20})
    class_folders(folder / "test", {"cat": 2, "dog": 2})
    if not second:
        for k in range(10):
            shutil.copy(folder / "train" / "cat" / "10.png", folder / "train" / "cat" / f"{k}.png")
    quick: dict[str, Any] = {"method": "ce", "model": "resnet8", "epochs": 1, "workers": 0, "say": quiet}
    settings = ["data.allow_leakage=true", "train.report=false"]
    with pytest.raises(UserError, match=r"process 1 has different data than process 0: different .* images"):
        gpaco.train(folder, out=home / "run", settings=settings, **quick)
    if second:
        (folder / "train" / "dog" / "7.png").unlink()
    with pytest.raises(UserError, match="process 1 has different data than process 0: 39 train images"):
        gpaco.train(folder, out=home / "run", settings=settings, **quick)
    return {}


@pytest.mark.process
def test_training_on_copies_that_differ_is_refused_before_the_first_step(tmp_path: Path) -> None:
    run_ranks(2, partial(trained, tmp_path))
    assert not (tmp_path / "run").exists()


@pytest.mark.process
def test_processes_with_different_data_all_refuse_and_each_file_is_inspected_by_one_of_them() -> None:
    one, other = run_ranks(2, scenario)
    assert one["read"].tolist() == [0, 2, 4, 6, 8]
    assert other["read"].tolist() == [1, 3, 5, 7]
