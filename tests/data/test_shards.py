"""Tar shards: read by offsets, in the order of the folder that they were made from."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import assert_same_run
from helpers.images import class_folders, drawing, save, tree_hash
from PIL import Image

import gpaco
from gpaco.data.files import find_files
from gpaco.data.images import read_image
from gpaco.data.inspection import fingerprints
from gpaco.data.readers.read import read
from gpaco.errors import UserError

QUICK = {"model": "resnet8", "epochs": 2, "method": "ce", "report": False, "say": lambda line: None}


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def png(seed: int = 0) -> bytes:
    file = io.BytesIO()
    Image.fromarray(drawing(12, 10, seed)).save(file, "PNG")
    return file.getvalue()


def shards_of(folder: Path, to: Path, number: int = 2) -> Path:
    """The images of a folder of class folders, shuffled, in shards with a .cls file for each."""
    files = sorted(folder.rglob("*.png"))
    files = [files[i] for i in np.random.default_rng(0).permutation(len(files))]
    to.mkdir(parents=True)
    for k in range(number):
        with tarfile.open(to / f"train-{k:03}.tar", "w") as archive:
            for file in files[k::number]:
                name = file.relative_to(folder)
                add(archive, str(name), file.read_bytes())
                add(archive, str(name.with_suffix(".cls")), file.parent.name.encode())
    return to


def write(path: Path, **files: bytes | str) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            data = content if isinstance(content, bytes) else content.encode()
            add(archive, name.replace("__", "/").replace("_", "."), data)
    return path


@pytest.mark.slow
def test_shards_train_to_the_same_bits_as_the_folder_they_were_made_from(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos", {"a": 14, "b": 9, "c": 5})
    shards = shards_of(folder, tmp_path / "shards")
    before = tree_hash(shards)
    one = gpaco.train(folder, out=tmp_path / "one", **QUICK)
    two = gpaco.train(shards, out=tmp_path / "two", **QUICK)
    assert_same_run(one.folder, two.folder)
    for name in ("metrics.json", "calibration.json"):  # as if it had been stopped after the first epoch
        (two.folder / name).unlink()
    shutil.rmtree(max((two.folder / "checkpoints").glob("step-*")))
    gpaco.train(shards, out=tmp_path / "two", **QUICK)
    assert_same_run(one.folder, two.folder)
    assert len(json.loads((two.folder / "shards.json").read_text())) == 2
    assert gpaco.evaluate(two, say=lambda _: None)["top1"] == one.metrics["top1"]
    rows = [gpaco.predict(two, place) for place in (folder, sorted(shards.glob("*.tar")))]
    answers = [{Path(row["path"]).parts[-2:]: row["top"] for row in table} for table in rows]
    assert answers[0] == answers[1]
    assert tree_hash(shards) == before


def test_an_index_is_used_until_the_shard_changes(tmp_path: Path) -> None:
    shard = write(tmp_path / "train-0.tar", a__1_png=png(1), b__2_png=png(2))
    index = tmp_path / "new" / "shards.json"
    read(shard, index=index)
    stored = json.loads(index.read_text())
    stored[str(shard)]["images"][0][3] = "b"
    index.write_text(json.dumps(stored))
    assert read(shard, index=index, allow_empty_classes=True).classes == ("b",)  # as the index says
    write(shard, a__1_png=png(1), b__2_png=png(2), c__3_png=png(3))
    assert read(shard, index=index).classes == ("a", "b", "c")


def test_classes_come_from_texts_json_or_folders_and_splits_from_names(tmp_path: Path) -> None:
    write(
        tmp_path / "train-0.tar",
        x_cls="10", x_png=png(1), x_json='{"label": 7}', x_txt="a caption", y_png=png(2),
        y_json='{"label": 9, "caption": "a dog"}', y_txt="a dog", **{"10__z_png": png(3)},
    )  # fmt: skip
    write(tmp_path / "val_0.tar", v_png=png(4), v_txt="9\n")
    write(tmp_path / "test.tar", t_png=png(5), t_cls="10")
    splits = read(tmp_path)
    assert splits.reader == "tar shards"
    assert splits.classes == ("9", "10")  # numbers in the order of numbers
    assert splits.train.names == ("y.png", "10/z.png", "x.png")
    assert splits.train.counts.tolist() == [1, 2]
    assert (splits.val.names, splits.test.names) == (("v.png",), ("t.png",))
    np.testing.assert_array_equal(splits.train.load(0), read_image(save(tmp_path / "y.png", 2)))
    assert len(set(fingerprints(splits.train.paths or ()))) == 3
    assert [file.name for file in find_files([tmp_path / "train-0.tar"])] == ["10/z.png", "x.png", "y.png"]  # type: ignore[union-attr]
    for file, split in (("train-0.tar", "train"), ("val_0.tar", "valid"), ("test.tar", "test")):
        place = tmp_path / "folders" / split / "000.tar"
        place.parent.mkdir(parents=True)
        shutil.copyfile(tmp_path / file, place)
    by_folder = read(tmp_path / "folders")
    assert [part.names for _, part in by_folder.parts()] == [part.names for _, part in splits.parts()]


def test_an_archive_beside_the_folders_it_was_unpacked_to_is_not_data(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos" / "train", {"a": 3, "b": 2}).parent
    write(folder / "photos.tar", c__1_png=png())
    assert read(folder).train.counts.tolist() == [3, 2]


def test_links_in_an_archive_are_the_images_they_lead_to(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos", {"a": 3, "b": 2})
    (folder / "b" / "hard.png").hardlink_to(folder / "a" / "0.png")
    (folder / "b" / "soft.png").symlink_to("../a/1.png")
    (folder / "b" / "softer.png").symlink_to("soft.png")
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        archive.add(folder, ".")
    there, packed = read(folder).train, read(tmp_path / "train.tar").train
    assert packed.counts.tolist() == there.counts.tolist() == [3, 5]
    assert all(np.array_equal(there.load(i), packed.load(i)) for i in range(8))
    (folder / "b" / "away.png").symlink_to("/nowhere/1.png")
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        archive.add(folder, ".")
    with pytest.raises(UserError, match=r"'b/away.png' is a link to '/nowhere/1.png', which is not in the archive"):
        read(tmp_path / "train.tar")


def test_class_names_in_shards_are_those_of_folders(tmp_path: Path) -> None:
    composed, decomposed = "g\u00e4mma", "ga\u0308mma"
    write(tmp_path / "train.tar", **{f"{composed}__1_png": png(1), f"{decomposed}__2_png": png(2), "b__3_png": png(3)})
    assert read(tmp_path / "train.tar").classes == ("b", composed)
    null = json.dumps({"label": None, "cls": "c"})
    write(tmp_path / "train.tar", a__1_png=png(1), a__1_json='{"label": null}', b__2_png=png(2), b__2_json=null)
    assert read(tmp_path / "train.tar").classes == ("a", "c")


def test_shards_of_a_test_split_alone_can_be_evaluated_on(tmp_path: Path) -> None:
    write(tmp_path / "test-0.tar", **{"1_png": png(1), "1_cls": "\ufeffa", "2_png": png(2), "2_cls": "a"})
    splits = read(tmp_path, needs_training=False)
    assert (len(splits.train), len(splits.test)) == (0, 2)
    assert splits.classes == ("a",)  # without the byte order mark


def test_shards_that_cannot_be_used_say_what_is_wrong(tmp_path: Path) -> None:
    cases = {
        "no class for '1.png'": {"train-0.tar": {"1_png": png()}},
        "no image in": {"train-0.tar": {"1_cls": "a"}},
        "more than one shard has 'a/1.png'": {"train-0.tar": {"a__1_png": png()}, "train-1.tar": {"a__1_png": png()}},
        "two classes for the sample '/x'": {"train-0.tar": {"x_1_png": png(), "x_1_cls": "a", "x_2_cls": "b"}},
        "no training images; read as tar shards": {"val-0.tar": {"a__1_png": png()}},
        r"the text of .*train-0.tar/1.txt is not UTF-8": {"train-0.tar": {"1_png": png(), "1_txt": b"caf\xe9"}},
    }
    for number, (message, shards) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, files in shards.items():
            write(folder / name, **files)
        with pytest.raises(UserError, match=message):
            read(folder)
    (tmp_path / "damaged").mkdir()
    content = (tmp_path / "2" / "train-0.tar").read_bytes()
    second = write(tmp_path / "whole.tar", a__1_png=png(), b__2_png=png(), c__3_png=png()).read_bytes()
    header = second.index(b"b/2.png")
    for bad in (b"x" * 1000 + content[1000:], second[: header + 9] + b"x" + second[header + 10 :], second[:header]):
        (tmp_path / "damaged" / "train-0.tar").write_bytes(bad)
        if bad == second[:header]:  # without the zeros at the end, as some programs write it
            assert len(read(tmp_path / "damaged", allow_empty_classes=True).train) == 1
            continue
        with pytest.raises(UserError, match="not a tar archive, or damaged"):
            read(tmp_path / "damaged")


def test_an_unreadable_member_is_named(tmp_path: Path) -> None:
    shard = write(tmp_path / "s.tar", a__1_png=b"no image", b__2_png=png())
    splits = read(shard)
    with pytest.raises(UserError, match=r"s\.tar/a/1\.png"):
        splits.train.load(0)
