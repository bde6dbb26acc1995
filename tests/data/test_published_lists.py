"""Whether the lists of a data set are the published ones."""

import subprocess
from pathlib import Path

import pytest

from gpaco.data import published_lists
from gpaco.data.published_lists import PUBLISHED, Published, compared_with_published


def test_a_list_is_compared_by_the_name_that_git_gives_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("Places_LT_train.txt", "a.jpg 0\n"), ("Places_LT_val.txt", "b.jpg 0\n"), ("mine.txt", "c 0\n")):
        (tmp_path / name).write_text(text)
    told = subprocess.run(["git", "hash-object", tmp_path / "Places_LT_train.txt"], capture_output=True, check=True)
    known = Published(1, told.stdout.decode().strip())
    monkeypatch.setattr(published_lists, "PUBLISHED", PUBLISHED | {"Places_LT_train.txt": known})
    assert compared_with_published(tmp_path / "Places_LT_train.txt") == [
        "Places_LT_train.txt: the published file",
        "Places_LT_val.txt: differs from the published file",
    ]
    assert compared_with_published(tmp_path / "mine.txt") == compared_with_published(tmp_path) == []
