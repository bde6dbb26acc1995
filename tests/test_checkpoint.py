"""Checkpoints under SIGKILL, full disks, damage and malice; the lock of a run folder; logs of JSON lines.

Run as a program this file is the child that gets killed: see `main` at the end.
"""

import errno
import fcntl
import json
import os
import pickle
import random
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from gpaco import checkpoint
from gpaco.checkpoint import find, load, prune, save, verify
from gpaco.errors import EnvironmentProblem, UserError
from gpaco.files import append_jsonl, trim_jsonl, write_atomic
from gpaco.locking import lock
from gpaco.packing import pack_optimizer, unpack_optimizer


def parts(step: int, size: int = 50) -> dict[str, dict[str, Tensor]]:
    """Tensors that say which step they are of."""
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
def child(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """This file as a program, in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(Path(checkpoint.__file__).parents[1])}
    command = [sys.executable, __file__, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


# Saving and loading


def test_what_is_saved_is_loaded_and_the_folder_is_as_documented(tmp_path: Path) -> None:
    path = save_step(tmp_path / "checkpoints", 1234)
    assert path == tmp_path / "checkpoints" / "step-00001234"
    assert sorted(p.name for p in path.iterdir()) == [
        "MANIFEST.json", "model.safetensors", "optimizer.safetensors", "state.json",
    ]  # fmt: skip
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00001234\n"
    for place in (path, path.parent):
        assert_is_step(load(place), 1234)
        assert load(place).warnings == ()
    verify(path)
    assert hidden(path.parent) == []


def test_every_kind_of_tensor_comes_back_bit_for_bit(tmp_path: Path) -> None:
    image = torch.randn(2, 3, 4, 5)
    shared = torch.randn(6)
    tensors = {
        "channels_last": image.to(memory_format=torch.channels_last),
        "transposed": torch.randn(3, 4).t(),
        "one": shared,
        "two": shared,
        "slice": shared[2:4],
        "grad": torch.randn(2, requires_grad=True),
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(7),
        "bool": torch.tensor([True, False]),
        **{
            str(kind): torch.ones(3, dtype=kind) for kind in (torch.bfloat16, torch.float16, torch.float64, torch.uint8)
        },
    }
    back = load(save(tmp_path, 0, {"model": tensors, "empty": {}}, {})).tensors
    assert back["empty"] == {}
    assert set(back["model"]) == set(tensors)
    for name, tensor in tensors.items():
        assert back["model"][name].dtype == tensor.dtype
        assert torch.equal(back["model"][name].contiguous().view(torch.uint8) if tensor.ndim else back["model"][name],
                           tensor.detach().contiguous().view(torch.uint8) if tensor.ndim else tensor)  # fmt: skip


def test_only_the_parts_asked_for_are_read(tmp_path: Path) -> None:
    path = save_step(tmp_path, 3)
    (path / "optimizer.safetensors").write_bytes(b"damaged")
    assert set(load(path, parts=["model"]).tensors) == {"model"}
    with pytest.raises(UserError, match=r"optimizer\.safetensors is not what was written"):
        load(path)
    with pytest.raises(UserError, match="no part 'modle'"):
        load(path, parts=["modle"])


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save_step(tmp_path, 7)
    path = save(tmp_path, 7, {"model": {"x": torch.ones(1)}}, {"again": True})
    assert load(tmp_path).state == {"again": True}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000007"]
    # One that we cannot be sure to have written is put aside, not deleted.
    (path / "notes.txt").write_text("mine")
    save_step(tmp_path, 7)
    assert_is_step(load(tmp_path), 7)
    assert (tmp_path / "step-00000007.aside-1" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077, 0o027])
def test_files_and_folders_follow_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        path = save_step(tmp_path / "run" / "checkpoints", 1)
        append_jsonl(tmp_path / "run" / "log.jsonl", {})
    finally:
        os.umask(before)
    for entry in (tmp_path / "run").rglob("*"):
        expected = (0o777 if entry.is_dir() else 0o666) & ~mask
        assert stat.S_IMODE(entry.stat().st_mode) == expected, entry
    assert path.is_dir()


def test_a_number_that_is_not_finite_or_a_strange_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        save(tmp_path / "new", 1, {}, {"best": float("nan")})
    with pytest.raises(ValueError, match=r"got '\.\./model'"):
        save(tmp_path / "new", 1, {"../model": {}}, {})
    assert not (tmp_path / "new").exists()


# Crashes


def test_a_kill_at_any_point_of_saving_leaves_the_previous_or_the_new_checkpoint_whole(tmp_path: Path) -> None:
    with child("crash-points", tmp_path) as process:
        assert process.wait(60) == 0
    killed = sorted(path for path in tmp_path.iterdir() if not (path / "finished").exists())
    assert len(killed) >= 30
    steps = set()
    for folder in killed:
        found = load(folder)
        assert found.step in ((2, 3) if folder.name.startswith("new") else (2,))
        assert_is_step(found, found.step)
        assert found.warnings == ()
        steps.add(found.step)
        save_step(folder, 4)  # and life goes on
        prune(folder, 1)
        assert_is_step(load(folder), 4)
        assert sorted(path.name for path in folder.iterdir()) == ["latest", "step-00000004"]
    assert steps == {2, 3}


def test_kills_at_random_moments_lose_nothing_that_was_confirmed(tmp_path: Path) -> None:
    with child("random-kills", tmp_path, 16) as process:
        assert process.wait(120) == 0
    rounds = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert len(rounds) == 16
    assert rounds[-1]["found"] >= 8
    for one in rounds:
        assert one["confirmed"] <= one["found"] <= one["confirmed"] + 1
    assert_is_step(load(tmp_path / "run"), rounds[-1]["found"], 2000)
    assert trim_jsonl(tmp_path / "run" / "log.jsonl", 10**9)
    logged = [json.loads(line)["step"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert logged == list(range(1, len(logged) + 1))  # none lost, none twice


# Full disks, missing rights


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow beyond that: what a full disk does, without one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_previous_checkpoint_untouched_and_nothing_half_written(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    before = tree(tmp_path)
    biggest = max(len(content) for content in before.values())
    for size in [0, 1, 5, *range(10, biggest, biggest // 17)]:
        with largest_file(size), pytest.raises(EnvironmentProblem, match="the disk is full") as error:
            save_step(tmp_path, 2)
        assert error.value.exit_code == 3
        assert "\n" not in error.value.cause
        assert "goes on from the last checkpoint" in error.value.remedy
        assert tree(tmp_path) == before
        assert hidden(tmp_path) == []
        assert_is_step(load(tmp_path), 1)
    assert_is_step(load(save_step(tmp_path, 2)), 2)


def test_a_full_disk_leaves_single_files_as_they_were(tmp_path: Path) -> None:
    write_atomic(tmp_path / "metrics.json", "old")
    append_jsonl(tmp_path / "log.jsonl", {"step": 1})
    before = tree(tmp_path)
    for action in (
        lambda: write_atomic(tmp_path / "metrics.json", "new" * 100),
        lambda: append_jsonl(tmp_path / "log.jsonl", {"step": 2, "text": "x" * 100}),
    ):
        with largest_file(50), pytest.raises(EnvironmentProblem, match="the disk is full"):
            action()
        assert tree(tmp_path) == before


@contextmanager
def without_rights() -> Iterator[None]:
    """As an ordinary user, if we are root, whom nothing is forbidden."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_without_permission_is_an_environment_problem() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_step(folder, 1)
        append_jsonl(folder / "log.jsonl", {})
        folder.chmod(0o555)
        for action in (
            lambda: save_step(folder, 2),
            lambda: save_step(folder / "below", 2),
            lambda: write_atomic(folder / "x.json", "{}"),
            lambda: append_jsonl(folder / "new.jsonl", {}),
            lambda: lock(folder).__enter__(),
        ):
            with without_rights(), pytest.raises(EnvironmentProblem, match="no permission to write") as error:
                action()
            assert error.value.exit_code == 3
        with without_rights():
            assert_is_step(load(folder), 1)
        (folder / "step-00000001" / "model.safetensors").chmod(0)
        with without_rights(), pytest.raises(EnvironmentProblem, match="no permission to read"):
            load(folder)
        folder.chmod(0o755)


def test_odd_paths_work_or_are_named(tmp_path: Path) -> None:
    for name in ("with space", "ünïcödé-雪", "a" * 255, "new/below/below", "-rf", "step-00000001"):
        assert_is_step(load(save_step(tmp_path / name / "checkpoints", 1).parent), 1)
    save_step(tmp_path / "vanishing", 1)
    shutil.rmtree(tmp_path / "vanishing")
    assert_is_step(load(save_step(tmp_path / "vanishing", 2).parent), 2)
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below", "b" * 256):
        with pytest.raises(EnvironmentProblem, match="cannot save the checkpoint"):
            save_step(tmp_path / name, 1)


# Damage and malice


def mutants(folder: Path, seed: int, count: int) -> Iterator[str]:
    """Change one file below `folder`, yield what was done, put it back."""
    dice = random.Random(seed)  # noqa: S311
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for _ in range(count):
        path = dice.choice(files)
        good = path.read_bytes()
        bad = bytearray(good)
        at = dice.randrange(len(good))
        kind = dice.choice(["flip", "cut", "add", "insert", "delete", "zero", "empty", "gone"])
        if kind == "flip":
            bad[at] ^= 1 << dice.randrange(8)
        elif kind == "cut":
            del bad[at:]
        elif kind == "add":
            bad += dice.randbytes(dice.randrange(1, 9))
        elif kind == "insert":
            bad[at:at] = dice.choice([b" ", b"\n", dice.randbytes(1)])
        elif kind == "delete":
            del bad[at]
        elif kind == "zero":
            bad[at : at + 64] = bytes(len(bad[at : at + 64]))
        elif kind == "empty":
            bad.clear()
        if kind == "gone":
            path.unlink()
        elif bytes(bad) == good:
            continue
        else:
            path.write_bytes(bad)
        yield f"{kind} at {at} of {path.name}"
        path.write_bytes(good)


def test_every_damage_is_noticed_and_the_newest_good_checkpoint_used(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    save_step(tmp_path, 2)
    noticed = 0
    for what in mutants(tmp_path / "step-00000002", seed=0, count=320):
        found = load(tmp_path)
        assert found.step == 1, what
        (warning,) = found.warnings
        assert "step-00000002 is damaged" in warning, what
        with pytest.raises(UserError, match="step-00000002 is damaged"):
            load(tmp_path / "step-00000002")
        noticed += 1
    assert noticed >= 300
    assert_is_step(load(tmp_path), 2)


def test_a_damaged_name_of_the_latest_checkpoint_changes_nothing(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    save_step(tmp_path, 2)
    for content in (b"", b"step-00000001", b"../../etc", b"\xff\xfe", b"x" * 10_000):
        (tmp_path / "latest").write_bytes(content)
        assert_is_step(load(tmp_path), 2)
    (tmp_path / "latest").unlink()
    assert_is_step(load(tmp_path), 2)


def test_a_folder_without_a_good_checkpoint_is_an_error_that_says_why(tmp_path: Path) -> None:
    for empty in (tmp_path, tmp_path / "missing"):
        assert find(empty) == []
        with pytest.raises(UserError, match="there is no checkpoint in"):
            load(empty)
    for step in (1, 2):
        (save_step(tmp_path, step) / "state.json").write_text("{}")
    with pytest.raises(UserError, match=r"is whole: .*step-00000002.*step-00000001") as error:
        load(tmp_path)
    assert error.value.exit_code == 2


def test_a_checkpoint_of_a_newer_version_is_not_mistaken_for_a_damaged_one(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    path = save_step(tmp_path, 2)
    body = json.loads((path / "MANIFEST.json").read_bytes()) | {"schema": 9}
    del body["sha256"]
    (path / "MANIFEST.json").write_bytes(checkpoint._signed(body))
    with pytest.raises(UserError, match="schema 9") as error:
        load(tmp_path)
    assert "version" in error.value.remedy


class _Payload:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


def header(content: bytes, length: int | None = None, data: bytes = b"") -> bytes:
    """The bytes of a safetensors file with this header."""
    return (len(content) if length is None else length).to_bytes(8, "little") + content + data


def test_hostile_files_with_a_valid_manifest_are_refused_and_run_nothing(tmp_path: Path) -> None:
    canary = tmp_path / "hacked"
    state = json.dumps({"schema": 1, "step": 1, "state": {}}).encode()
    deep = b"[" * 200_000
    tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    (tmp_path / "torch.pt").write_bytes(b"")
    torch.save({"x": torch.ones(2)}, tmp_path / "torch.pt")
    models: list[bytes] = [
        pickle.dumps(_Payload(canary)),
        header(b"{}", 8 + len(b"{}"), pickle.dumps(_Payload(canary))),
        (tmp_path / "torch.pt").read_bytes(),
        b"",
        b"\0" * 7,
        header(b"", 2**63),
        header(b"", 2**64 - 1),
        header(b"{}", 10**9),
        header(deep),
        header(b'{"a":' * 100_000),
        header(b"\xff\xfe"),
        header(b"[]"),
        header(b"null"),
        *(
            header(json.dumps({"w": tensor | change}).encode(), data=b"\0" * 8)
            for change in (
                {"dtype": "OBJ"},
                {"dtype": "F64"},
                {"shape": [-2]},
                {"shape": [2**62, 2**62]},
                {"shape": "x"},
                {"data_offsets": [0, 10**12]},
                {"data_offsets": [8, 0]},
                {"data_offsets": [-8, 0]},
                {"data_offsets": [0]},
            )
        ),
        header(json.dumps({"a": tensor, "b": tensor}).encode(), data=b"\0" * 8),
        header(json.dumps({"a": tensor}).encode(), data=b"\0" * 80),
    ]
    states = [
        deep,
        b"[]",
        b"null",
        b"{}",
        b'{"step": 1, "state": 3}',
        b'{"step": 2, "state": {}}',
        b"\xff",
        b"9" * 5000,
    ]
    states += [b'{"state": {"a": ' * 20_000, pickle.dumps(_Payload(canary))]
    good = tmp_path / "good.safetensors"
    save_file({"x": torch.ones(2)}, good)
    cases = [(model, state) for model in models] + [(good.read_bytes(), other) for other in states]
    assert len(cases) >= 30
    for i, (model_bytes, state_bytes) in enumerate(cases):
        path = tmp_path / str(i) / "step-00000001"
        path.mkdir(parents=True)
        (path / "model.safetensors").write_bytes(model_bytes)
        (path / "state.json").write_bytes(state_bytes)
        manifest = checkpoint._manifest(1, {entry.name: checkpoint._digest(entry) for entry in path.iterdir()})
        (path / "MANIFEST.json").write_bytes(manifest)
        for place in (path, path.parent):
            with pytest.raises(UserError, match="damaged") as error:
                load(place)
            assert "\n" not in error.value.cause + error.value.remedy, i
    assert not canary.exists()


def test_hostile_manifests_are_refused_without_reading_what_they_point_at(tmp_path: Path) -> None:
    path = save_step(tmp_path, 1)
    good = json.loads((path / "MANIFEST.json").read_bytes())["files"]
    secret = tmp_path / "secret"
    secret.write_text("x")
    outside: list[Any] = [
        {**good, "../secret": checkpoint._digest(secret)},
        {**good, str(secret): checkpoint._digest(secret)},
        {**good, "notes.txt": checkpoint._digest(secret)},
        {name: entry for name, entry in good.items() if name != "state.json"},
        {**good, "model.safetensors": None},
        {**good, "model.safetensors": {}},
        {**good, "model.safetensors": {"bytes": "x", "sha256": 3}},
        {},
    ]
    contents = [checkpoint._manifest(1, files) for files in outside]
    contents += [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"files": 3}',
        b"[" * 100_000,
        b"\0" * 100,
        b'{"files": {}}' + b" " * (2 << 20),
    ]
    for content in contents:
        (path / "MANIFEST.json").write_bytes(content)
        with pytest.raises(UserError, match="is damaged"):
            load(path)

    (path / "MANIFEST.json").write_bytes(checkpoint._manifest(1, good))
    assert_is_step(load(path), 1)
    (path / "state.json").rename(path / "elsewhere")
    for strange in (
        lambda: os.mkfifo(path / "state.json"),
        lambda: (path / "state.json").symlink_to(path / "elsewhere"),
    ):
        strange()
        with pytest.raises(UserError, match="is damaged"):
            load(path)  # and does not wait for the pipe
        (path / "state.json").unlink()


# Pruning

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.integers(1, 9)),
        st.tuples(st.sampled_from(["damage", "spoil manifest", "add a note"]), st.integers(0, 8)),
        st.tuples(st.just("foreign"), st.sampled_from(["step-00000003", "step-3", "best", "step-00000004.old"])),
        st.tuples(st.just("prune"), st.integers(-1, 3), st.sets(st.integers(1, 9), max_size=2)),
    ),
    min_size=2,
    max_size=9,
)


@settings(max_examples=300)
@given(OPERATIONS)
def test_pruning_deletes_only_what_was_saved_and_never_the_last_a_protected_or_a_foreign_one(
    operations: list[tuple[Any, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as name, patch("os.fsync"):
        folder, ours, last = Path(name), set[int](), 0
        for operation, *arguments in operations:
            names = sorted(path.name for path in folder.iterdir() if path.is_dir())
            if operation == "save":
                (last,) = arguments
                save(folder, last, {"model": {"x": torch.tensor(last)}}, {})
                ours.add(last)
            elif operation == "foreign" and arguments[0] not in names:
                (folder / arguments[0]).mkdir()
                (folder / arguments[0] / "precious.txt").write_text("mine")
            elif operation == "prune":
                keep, spared = arguments
                protect = [f"step-{step:08d}" for step in spared]
                candidates = sorted((s for s in ours if s <= last and s not in spared), reverse=True)
                expected = {s for s in candidates[max(keep, 0) :] if s != last}
                deleted = prune(folder, keep, protect)
                assert {path.name for path in deleted} == {f"step-{step:08d}" for step in expected}
                ours -= expected
                after = {path.name for path in folder.iterdir() if path.is_dir()}
                assert after == set(names) - {path.name for path in deleted}
            elif operation in ("damage", "spoil manifest", "add a note") and ours:
                step = sorted(ours)[arguments[0] % len(ours)]
                path = folder / f"step-{step:08d}"
                if operation == "damage":
                    (path / "model.safetensors").write_bytes(b"damaged, but still ours")
                else:
                    ours.discard(step)
                    file = "notes.txt" if operation == "add a note" else "MANIFEST.json"
                    (path / file).write_text("from now on nobody can tell whose this is")
        for path in folder.rglob("precious.txt"):
            assert path.read_text() == "mine"
        foreign = {arguments[0] for operation, *arguments in operations if operation == "foreign"}
        kept = {path.name for path in folder.iterdir()}
        assert all(any(k.startswith(name) for k in kept) for name in foreign)
        if last in ours:
            assert (folder / f"step-{last:08d}" / "MANIFEST.json").exists()
        assert not hidden(folder)


def test_checkpoints_newer_than_the_last_do_not_push_out_good_ones(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save_step(tmp_path, step)
    for step in (200, 300):
        (tmp_path / f"step-{step:08d}" / "model.safetensors").write_bytes(b"damaged")
    assert load(tmp_path).step == 100
    save_step(tmp_path, 150)
    assert prune(tmp_path, keep=2) == []
    assert_is_step(load(tmp_path), 150)
    save_step(tmp_path, 200)
    assert [path.name for path in prune(tmp_path, keep=2)] == ["step-00000100"]
    assert load(tmp_path).warnings
    assert_is_step(load(tmp_path), 200)


def test_pruning_does_not_follow_links_and_does_nothing_without_a_last_checkpoint(tmp_path: Path) -> None:
    elsewhere = save_step(tmp_path / "elsewhere", 1)
    for step in (2, 3):
        save_step(tmp_path / "run", step)
    (tmp_path / "run" / "step-00000001").symlink_to(elsewhere)
    assert [path.name for path in prune(tmp_path / "run", 1)] == ["step-00000002"]
    assert_is_step(load(elsewhere), 1)
    save_step(tmp_path / "run", 4)
    (tmp_path / "run" / "latest").write_text("step-00000099\n")
    assert prune(tmp_path / "run", 0) == []
    assert prune(tmp_path / "missing", 0) == []


# Optimisers


def small_model() -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5))
    return model.to(memory_format=torch.channels_last)


def train_steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, count: int) -> None:
    for step in range(first, first + count):
        images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(images).logsumexp(1).sum().backward()
        optimizer.param_groups[0]["lr"] = 0.01 / (step + 1)
        optimizer.step()


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4),
    "nesterov": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, nesterov=True),
    "no momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.01),
    "adamw": lambda m: torch.optim.AdamW(
        [{"params": [*m[0].parameters()], "lr_scale": 0.5}, {"params": [*m[1:].parameters()], "weight_decay": 0.0}],
        lr=0.01,
        betas=(0.9, 0.95),
    ),
    "amsgrad": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, amsgrad=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("done", [0, 1, 4])
def test_an_optimiser_goes_on_bit_for_bit_from_a_checkpoint(tmp_path: Path, name: str, done: int) -> None:
    whole = small_model()
    optimizer = OPTIMIZERS[name](whole)
    train_steps(whole, optimizer, 0, done)
    tensors, meta = pack_optimizer(optimizer)
    save(tmp_path, done, {"model": whole.state_dict(), "optimizer": tensors}, {"optimizer": meta})
    train_steps(whole, optimizer, done, 4)

    found = load(tmp_path)
    resumed = small_model()
    resumed.load_state_dict(found.tensors["model"])
    again = OPTIMIZERS[name](resumed)
    unpack_optimizer(again, found.tensors["optimizer"], found.state["optimizer"])
    train_steps(resumed, again, done, 4)

    for key, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key
    mine, theirs = pack_optimizer(optimizer), pack_optimizer(again)
    assert mine[1] == theirs[1]
    assert all(torch.equal(value, theirs[0][key]) for key, value in mine[0].items())
    assert optimizer.defaults == again.defaults
    for a, b in zip(optimizer.param_groups, again.param_groups, strict=True):
        assert {k: v for k, v in a.items() if k != "params"} == {k: v for k, v in b.items() if k != "params"}


def test_a_state_of_another_optimiser_or_model_is_refused() -> None:
    sgd, adamw = (OPTIMIZERS[name](small_model()) for name in ("sgd", "adamw"))
    tensors, meta = pack_optimizer(sgd)
    for wrong in (adamw, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)):
        with pytest.raises(UserError, match="the checkpoint is of SGD with parameters in groups of"):
            unpack_optimizer(wrong, tensors, meta)
    for key in ("99.momentum_buffer", "x", "-1.momentum_buffer"):
        with pytest.raises(UserError):
            unpack_optimizer(sgd, {key: torch.zeros(1)}, meta)


# The lock


def test_a_second_process_is_told_who_has_the_folder_and_a_dead_one_has_it_no_longer(tmp_path: Path) -> None:
    with child("hold-lock", tmp_path) as process:
        assert process.stdout is not None
        helper = int(process.stdout.readline())  # a process that the holder has forked, as loaders do
        with pytest.raises(UserError) as error, lock(tmp_path):
            pass
        assert error.value.exit_code == 2
        assert f"process {process.pid} on {socket.gethostname()} since 20" in error.value.cause
        assert "--out" in error.value.remedy
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        try:
            os.kill(helper, 0)  # still there
            with lock(tmp_path):
                assert json.loads((tmp_path / "run.lock").read_text())["pid"] == os.getpid()
        finally:
            os.kill(helper, signal.SIGKILL)


def can_be_locked_elsewhere(folder: Path) -> bool:
    """Whether another process could take the system's lock."""
    program = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", program, str(folder / "run.lock")]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def test_a_lock_can_be_taken_again_after_it_was_given_back_but_not_twice_at_once(tmp_path: Path) -> None:
    for _ in range(3):
        with lock(tmp_path / "run"):
            with pytest.raises(UserError, match=f"in use by process {os.getpid()}"), lock(tmp_path / "." / "run"):
                pass
            assert not can_be_locked_elsewhere(tmp_path / "run")
            with lock(tmp_path / "another"):
                pass
        assert can_be_locked_elsewhere(tmp_path / "run")
    with pytest.raises(ZeroDivisionError), lock(tmp_path / "run"):
        _ = 1 / 0
    with lock(tmp_path / "run"):
        pass


def test_on_a_file_system_without_locks_the_process_written_in_the_file_counts(tmp_path: Path) -> None:
    def holder(**change: Any) -> None:
        who = {"host": socket.gethostname(), "pid": os.getppid(), "since": "yesterday"} | change
        (tmp_path / "run.lock").write_text(json.dumps(who))

    gone = subprocess.Popen(["true"])
    gone.wait()
    with patch.object(fcntl, "lockf", side_effect=OSError(errno.ENOLCK, "No locks available")):
        for who in ({}, {"host": "another"}):
            holder(**who)
            with pytest.raises(UserError, match=r"in use by process .* since yesterday"), lock(tmp_path):
                pass
        for who in ({"pid": gone.pid}, {"pid": 10**30}):
            holder(**who)
            with lock(tmp_path):
                pass
        for content in ("", "{}", "[" * 9999, '{"host": 3, "pid": "x", "since": 1}'):
            (tmp_path / "run.lock").write_text(content)
            with lock(tmp_path):
                pass


# Logs


def test_a_log_cut_anywhere_is_trimmed_to_whole_rows_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for step in range(1, 5):
        append_jsonl(path, {"step": step, "name": "é\n\u2028"})
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        rows = trim_jsonl(path, 3)
        complete = min(whole[:cut].count(b"\n"), 3)
        assert [row["step"] for row in rows] == list(range(1, complete + 1))
        append_jsonl(path, {"step": complete + 1, "name": "é\n\u2028"})
        lines = path.read_text().split("\n")
        assert [json.loads(line)["step"] for line in lines[:-1]] == list(range(1, complete + 2))
    assert hidden(tmp_path) == []


def test_trimming_takes_a_function_too_and_a_missing_log_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert trim_jsonl(path, 3) == []
    assert not path.exists()
    for epoch in range(5):
        append_jsonl(path, {"epoch": epoch})
    assert trim_jsonl(path, lambda row: row["epoch"] % 2 == 0) == [{"epoch": 0}, {"epoch": 2}, {"epoch": 4}]
    assert path.read_text() == '{"epoch": 0}\n{"epoch": 2}\n{"epoch": 4}\n'


@pytest.mark.parametrize("line", ["nonsense", "[1]", "3", "{}", '{"step": "x"}', "[" * 99_999, "\0" * 40])
def test_a_strange_line_in_the_middle_of_a_log_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n' + line + '\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"line 2 of .*log\.jsonl"):
        trim_jsonl(tmp_path / "log.jsonl", 3)


def test_a_row_that_is_not_json_leaves_the_log_alone(tmp_path: Path) -> None:
    append_jsonl(tmp_path / "log.jsonl", {"step": 1})
    with pytest.raises(ValueError, match="JSON"):
        append_jsonl(tmp_path / "log.jsonl", {"loss": float("inf")})
    assert (tmp_path / "log.jsonl").read_text() == '{"step": 1}\n'


# The child


def crash_points(root: Path) -> None:
    """For every call in `save` that changes or syncs something: a process that dies just before it."""
    for kind in ("new", "same"):
        for point in range(100):
            folder = root / f"{kind}-{point:02d}"
            with patch("os.fsync"):
                save_step(folder, 1)
                save_step(folder, 2)
            process = os.fork()
            if process == 0:
                try:
                    _die_before_call(point)
                    save_step(folder, 3 if kind == "new" else 2)
                    (folder / "finished").touch()
                    os._exit(0)
                finally:
                    os._exit(1)
            status = os.waitpid(process, 0)[1]
            if not os.WIFSIGNALED(status):  # there are no more points
                assert os.WEXITSTATUS(status) == 0
                break


def _die_before_call(point: int) -> None:
    """Dying before a sync also takes half of what was not yet synced, as a power cut would."""
    calls, fsync = iter(range(1000)), os.fsync

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if next(calls) == point:
                if real is fsync and os.path.isfile(f"/proc/self/fd/{arguments[0]}"):
                    os.truncate(f"/proc/self/fd/{arguments[0]}", os.fstat(arguments[0]).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **more)

        return call

    os.fsync, os.replace, os.mkdir, os.rmdir, os.unlink = map(  # type: ignore[assignment]
        dying, (os.fsync, os.replace, os.mkdir, os.rmdir, os.unlink)
    )


def random_kills(root: Path, rounds: int) -> None:
    """Start, resume, save and log in a loop, be killed; again and again in one folder."""
    folder, dice, found = root / "run", random.Random(0), 0  # noqa: S311
    for number in range(rounds):
        read, write = os.pipe()
        process = os.fork()
        if process == 0:
            with lock(folder):
                step = load(folder).step if find(folder) else 0
                trim_jsonl(folder / "log.jsonl", step)
                while True:
                    step += 1
                    append_jsonl(folder / "log.jsonl", {"step": step})
                    save_step(folder, step, 2000)
                    prune(folder, 2)
                    os.write(write, step.to_bytes(4, "little"))
        heard = os.read(read, 4) if number % 2 else b""  # every other time it gets at least that far
        time.sleep(dice.uniform(0, 0.1))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(write)
        heard += os.read(read, 1 << 20)
        os.close(read)
        confirmed = int.from_bytes(heard[-4:], "little") if heard else found
        found = load(folder).step if find(folder) else 0
        append_jsonl(root / "rounds.jsonl", {"confirmed": confirmed, "found": found})


def hold_lock(folder: Path) -> None:
    with lock(folder):
        helper = os.fork()
        if helper == 0:
            time.sleep(60)
            os._exit(0)
        print(helper, flush=True)
        sys.stdin.read()


def main() -> None:
    verb, folder, *rest = sys.argv[1:]
    if verb == "crash-points":
        crash_points(Path(folder))
    elif verb == "random-kills":
        random_kills(Path(folder), int(rest[0]))
    else:
        hold_lock(Path(folder))


if __name__ == "__main__":
    main()
