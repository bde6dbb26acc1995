"""Checkpoints that are damaged, missing, too new, or made to do harm."""

import json
import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from saving import assert_is_step, save_step

from gpaco import checkpoint
from gpaco.checkpoint import find, load
from gpaco.errors import UserError


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
