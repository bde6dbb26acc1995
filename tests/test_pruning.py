"""Old checkpoints go; the last, the protected and whatever is not ours stay."""

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from saving import assert_is_step, hidden, save_step

from gpaco.checkpoint import load, prune, save

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
