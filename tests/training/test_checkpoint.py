"""Checkpoints: what is saved is loaded, also after SIGKILL, on full disks, without rights, under odd names."""

import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.saving import assert_is_step, hidden, largest_file, save_step, tree, without_rights

from gpaco.errors import EnvironmentProblem, Problem, UserError
from gpaco.training.checkpoint import find, load, restore, save
from gpaco.training.run import has_begun


def test_a_run_with_an_unfinished_first_save_has_not_begun(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / ".step-00000010.writing").mkdir(parents=True)
    (tmp_path / "recipe.toml").touch()
    assert not has_begun(tmp_path)
    save_step(tmp_path / "checkpoints", 10)
    assert has_begun(tmp_path)


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
    with pytest.raises(UserError, match=r"optimizer\.safetensors has changed since it was written"):
        load(path)
    with pytest.raises(UserError, match="no part 'modle'"):
        load(path, parts=["modle"])


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save_step(tmp_path, 7)
    save(tmp_path, 7, {"model": {"x": torch.ones(1)}}, {"again": True})
    assert load(tmp_path).state == {"again": True}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000007"]


def test_a_step_that_cannot_be_replaced_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def fails(source: Any, target: Any) -> None:
        if str(source).endswith(".writing"):
            raise OSError(errno.EIO, "broken")
        replace(source, target)

    save_step(tmp_path, 1, 50)
    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(EnvironmentProblem):
        save_step(tmp_path, 1, 60)
    assert_is_step(load(tmp_path), 1, 50)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000001"]


def test_a_kill_while_the_only_checkpoint_is_replaced_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    save_step(folder, 1, 50)
    (tmp_path / "recipe.toml").touch()
    if not (process := os.fork()):
        replace = os.replace
        os.replace = lambda source, target: os._exit(9) if str(source).endswith(".writing") else replace(source, target)
        try:
            save_step(folder, 1, 60)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
    assert not find(folder)
    assert has_begun(tmp_path)
    restore(folder)
    assert_is_step(load(folder), 1, 50)
    assert_is_step(load(save_step(folder, 1, 60)), 1, 60)
    assert hidden(folder) == []


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077, 0o027])
def test_files_and_folders_follow_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        (tmp_path / "run").mkdir()
        path = save_step(tmp_path / "run" / "checkpoints", 1)
    finally:
        os.umask(before)
    for entry in (tmp_path / "run").rglob("*"):
        expected = (0o777 if entry.is_dir() else 0o666) & ~mask
        assert stat.S_IMODE(entry.stat().st_mode) == expected, entry
    assert path.is_dir()


def test_a_number_that_is_not_finite_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        save(tmp_path / "new", 1, {}, {"best": float("nan")})
    assert not (tmp_path / "new").exists()


def test_a_full_disk_leaves_the_previous_checkpoint_untouched_and_nothing_half_written(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    before = tree(tmp_path)
    biggest = max(len(content) for content in before.values())
    for size in [0, 1, 5, *range(10, biggest, biggest // 17)]:
        with largest_file(size), pytest.raises(EnvironmentProblem, match="the disk is full") as error:
            save_step(tmp_path, 2)
        assert error.value.exit_code == 3
        assert "\n" not in error.value.cause
        assert "resumes from the last checkpoint" in error.value.remedy
        assert tree(tmp_path) == before
        assert hidden(tmp_path) == []
        assert_is_step(load(tmp_path), 1)
    assert_is_step(load(save_step(tmp_path, 2)), 2)


def test_a_folder_without_permission_is_an_environment_problem() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_step(folder, 1)
        folder.chmod(0o555)
        for place in (folder, folder / "below"):
            with without_rights(), pytest.raises(EnvironmentProblem, match="permission denied") as error:
                save_step(place, 2)
            assert error.value.exit_code == 3
        with without_rights():
            assert_is_step(load(folder), 1)
        (folder / "step-00000001" / "model.safetensors").chmod(0)
        with without_rights(), pytest.raises(EnvironmentProblem, match="no permission to read"):
            load(folder)
        folder.chmod(0o755)


def test_odd_paths_work_or_are_named(tmp_path: Path) -> None:
    for name in ("with space", "ünïcödé-雪", "a" * 255, "-rf", "step-00000001"):
        (tmp_path / name).mkdir()
        assert_is_step(load(save_step(tmp_path / name / "checkpoints", 1).parent), 1)
    save_step(tmp_path / "vanishing", 1)
    shutil.rmtree(tmp_path / "vanishing")
    assert_is_step(load(save_step(tmp_path / "vanishing", 2).parent), 2)
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below", "b" * 256, "moved away/checkpoints"):
        with pytest.raises(Problem, match="cannot save the checkpoint") as error:
            save_step(tmp_path / name, 1)
        assert error.value.exit_code == (2 if len(name) > 255 else 3)  # no machine has such names
    assert not (tmp_path / "moved away").exists()
