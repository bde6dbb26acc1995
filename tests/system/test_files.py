"""Single files and logs: the old one or the new one after any crash, whole rows after any cut."""

import json
import os
import stat
import tempfile
from pathlib import Path

import pytest
from helpers.saving import hidden, largest_file, tree, without_rights

from gpaco.errors import EnvironmentProblem, UserError
from gpaco.system.files import append_jsonl, trim_jsonl, write_atomic
from gpaco.system.locks import HOLDER, LOCK
from gpaco.system.outputs import output_file, output_folder


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


def test_without_permission_a_file_is_an_environment_problem() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        for action in (
            lambda: write_atomic(folder / "x.json", "{}"),
            lambda: append_jsonl(folder / "new.jsonl", {}),
        ):
            with without_rights(), pytest.raises(EnvironmentProblem, match="permission denied") as error:
                action()
            assert error.value.exit_code == 3
        folder.chmod(0o755)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_files_follow_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_atomic(tmp_path / "x.json", "{}")
        append_jsonl(tmp_path / "log.jsonl", {})
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o666 & ~mask] * 2


def test_a_log_cut_anywhere_is_trimmed_to_whole_rows_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for step in range(1, 5):
        append_jsonl(path, {"step": step, "name": "é\n\u2028"})
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        rows = trim_jsonl(path, lambda row: row["step"] <= 3)
        complete = min(whole[:cut].count(b"\n"), 3)
        assert [row["step"] for row in rows] == list(range(1, complete + 1))
        append_jsonl(path, {"step": complete + 1, "name": "é\n\u2028"})
        lines = path.read_text().split("\n")
        assert [json.loads(line)["step"] for line in lines[:-1]] == list(range(1, complete + 2))
    assert hidden(tmp_path) == []


def test_any_row_can_be_trimmed_and_a_missing_log_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert trim_jsonl(path, lambda row: True) == []
    assert not path.exists()
    for epoch in range(5):
        append_jsonl(path, {"epoch": epoch})
    assert trim_jsonl(path, lambda row: row["epoch"] % 2 == 0) == [{"epoch": 0}, {"epoch": 2}, {"epoch": 4}]
    assert path.read_text() == '{"epoch": 0}\n{"epoch": 2}\n{"epoch": 4}\n'


@pytest.mark.parametrize("line", ["nonsense", "[1]", "3", "{}", '{"step": "x"}', "[" * 99_999, "\0" * 40])
def test_a_strange_line_in_the_middle_of_a_log_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n' + line + '\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"line 2 of .*log\.jsonl"):
        trim_jsonl(tmp_path / "log.jsonl", lambda row: row["step"] <= 3)


def test_a_row_that_is_not_json_leaves_the_log_alone(tmp_path: Path) -> None:
    append_jsonl(tmp_path / "log.jsonl", {"step": 1})
    with pytest.raises(ValueError, match="JSON"):
        append_jsonl(tmp_path / "log.jsonl", {"loss": float("inf")})
    assert (tmp_path / "log.jsonl").read_text() == '{"step": 1}\n'


def test_a_folder_in_which_only_the_mark_was_begun_is_still_free(tmp_path: Path) -> None:
    """What `kill -9` leaves of a run that was just writing its recipe."""
    for name in (LOCK, HOLDER, ".recipe.toml.writing"):
        (tmp_path / name).write_text("half")
    assert output_folder(tmp_path, "recipe.toml") == tmp_path
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="is not empty and was not written by this command"):
        output_folder(tmp_path, "recipe.toml")


def test_a_place_without_permission_is_an_error_before_any_work() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        for action in (
            lambda: output_file(folder / "metrics.json", {".json": "mark"}),
            lambda: output_file(folder / "new" / "metrics.json", {".json": "mark"}),
            lambda: output_folder(folder),
        ):
            with without_rights(), pytest.raises(EnvironmentProblem, match=r"cannot write to .*permission denied"):
                action()
        folder.chmod(0o755)
        assert output_file(folder / "new" / "metrics.json", {".json": "mark"})
        inner = folder / "volume"
        inner.mkdir()
        os.chown(inner, 65534, -1) if os.geteuid() == 0 else None
        folder.chmod(0o555)
        with without_rights():
            assert output_folder(inner) == inner  # a volume in a folder of somebody else
        folder.chmod(0o755)
