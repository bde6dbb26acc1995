"""Checkpoints that are damaged, missing, or of another format; and which old ones are deleted."""

import json
from pathlib import Path

import pytest
from helpers.saving import assert_is_step, hidden, save_step

from gpaco.errors import UserError
from gpaco.training.checkpoint import find, load, prune


def test_a_manifest_must_name_exactly_the_files_that_were_written(tmp_path: Path) -> None:
    path = save_step(tmp_path, 1)
    good = json.loads((path / "MANIFEST.json").read_bytes())
    assert sorted(good) == ["model.safetensors", "optimizer.safetensors", "state.json"]
    fewer = {name: value for name, value in good.items() if name != "optimizer.safetensors"}
    for content in (fewer, good | {"more.safetensors": "0"}, {}, [], None):
        (path / "MANIFEST.json").write_text(json.dumps(content))
        with pytest.raises(UserError, match="is damaged"):
            load(path, parts=["model"])


def test_a_checkpoint_under_the_name_of_another_step_is_damaged(tmp_path: Path) -> None:
    save_step(tmp_path, 1).rename(tmp_path / "step-00000002")
    with pytest.raises(UserError, match="is damaged: it is from step 1"):
        load(tmp_path / "step-00000002")


def test_a_damaged_name_of_the_latest_checkpoint_changes_nothing(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    save_step(tmp_path, 2)
    (tmp_path / "latest").write_bytes(b"\xff\xfe")
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
    with pytest.raises(UserError, match=r"are damaged: .*step-00000002.*step-00000001") as error:
        load(tmp_path)
    assert error.value.exit_code == 2


def test_a_checkpoint_of_another_format_is_refused_and_not_mistaken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_step(tmp_path, 1)
    with monkeypatch.context() as later:
        later.setattr("gpaco.training.checkpoint.FORMAT", 9)
        save_step(tmp_path, 2)
    with pytest.raises(UserError, match="step-00000002 has format 9, not 3"):
        load(tmp_path)


def test_pruning_keeps_the_newest_and_those_protected(tmp_path: Path) -> None:
    for step in range(1, 7):
        save_step(tmp_path, step)
    assert [path.name[-1] for path in prune(tmp_path, 2, ["step-00000003"])] == ["4", "2", "1"]
    assert [path.name[-1] for path in prune(tmp_path, 0)] == ["5", "3"]  # never the last one
    assert hidden(tmp_path) == []
    assert_is_step(load(tmp_path), 6)


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
