"""Samples, class folders, digits, and `read`: what is read, noted and refused, and that nothing is touched."""

import os
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from unicodedata import normalize

import numpy as np
import pytest
from helpers.images import class_folders, labeled, refused, save, watched
from helpers.saving import without_rights

from gpaco.data.files import find_files
from gpaco.data.leaks import refuse_one_class
from gpaco.data.readers.read import read
from gpaco.data.samples import Samples, in_memory
from gpaco.errors import UserError


def test_samples_have_a_label_each_in_range() -> None:
    images = np.zeros((2, 4, 4, 3), np.uint8)
    for wrong in (
        lambda: Samples(np.array([0]), ("a", "b"), images=images),
        lambda: Samples(np.array([0, 2]), ("a", "b"), images=images),
    ):
        with pytest.raises(ValueError, match=r"need|must be"):
            wrong()


def test_a_subset_keeps_names_labels_and_images_together() -> None:
    images = np.arange(5, dtype=np.uint8)[:, None, None, None].repeat(3, axis=3)
    samples = Samples(np.array([0, 1, 0, 1, 1]), ("a", "b", "c"), images=images)
    part = samples.subset([4, 0])
    assert part.names == ("4", "0")
    assert part.labels.tolist() == [1, 0]
    assert part.load(0)[0, 0, 0] == 4
    assert part.counts.tolist() == [1, 1, 0]
    assert len(samples.subset(np.array([], int))) == 0


def test_small_files_of_one_size_can_be_taken_into_memory(tmp_path: Path) -> None:
    splits = read(class_folders(tmp_path / "d", {"a": 3, "b": 2}))
    held = in_memory(splits, 1)
    assert held.train.paths is None
    assert held.train.names == splits.train.names
    assert all((held.train.load(i) == splits.train.load(i)).all() for i in range(5))
    assert "decoded into memory" in held.notes[-1]
    assert in_memory(splits, 1, largest=8) is splits
    assert in_memory(splits, 5 * 12 * 10 * 3 / 1e6 - 1e-9) is splits
    save(tmp_path / "d" / "z" / "other.png", width=9)
    other = read(tmp_path / "d")
    loaded: list[int] = []
    with pytest.MonkeyPatch.context() as patched:
        real = Samples.load
        patched.setattr(Samples, "load", lambda own, i, least=0: loaded.append(i) or real(own, i, least))
        assert in_memory(other, 1) is other
    assert loaded == [0]  # the last image is of another size: nothing was decoded to find that out


def test_names_that_look_the_same_are_the_same_in_folders_and_tables(tmp_path: Path) -> None:
    composed, decomposed = normalize("NFC", "Käse"), normalize("NFD", "Käse")
    for folder, name in (("train", decomposed), ("val", composed)):
        save(tmp_path / folder / name / "0.png")
        save(tmp_path / folder / "b" / "0.png")
    splits = read(tmp_path)
    assert splits.classes == (composed, "b")
    assert splits.val.counts.tolist() == [1, 1]
    rows = [(f"train/{composed}/0.png", decomposed), ("train/b/0.png", "b"), (f"val/{decomposed}/0.png", composed)]
    (tmp_path / "all.csv").write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in rows))
    assert read(tmp_path / "all.csv").classes == (composed, "b")
    (tmp_path / "all.txt").write_text(f"train/{composed}/0.png 1\nval/{decomposed}/0.png\ntrain/b/0.png\n")
    assert all(isinstance(file, Path) and file.is_file() for file in find_files([tmp_path / "all.txt"]))


def test_a_folder_of_class_folders_gives_sorted_classes_and_upper_case_suffixes(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "d", {"zebra": 1, "ant": 2})
    save(root / "ant" / "deep er" / "ü.JPG")
    (root / "ant" / ".hidden.png").write_bytes(b"x")
    (root / ".git").mkdir()
    (root / "ant" / "notes.txt").write_text("x")
    save(root / "loose.png")
    splits = watched(root)
    assert splits.reader == "folder of class folders"
    assert splits.classes == ("ant", "zebra")
    assert labeled(splits.train) == [
        ("ant/0.png", "ant"),
        ("ant/1.png", "ant"),
        ("ant/deep er/ü.JPG", "ant"),
        ("zebra/0.png", "zebra"),
    ]
    assert splits.train.counts.tolist() == [3, 1]
    assert splits.val is None
    assert splits.test is None
    assert splits.notes == (
        "left out: 1 image beside the class folders",
        "left out: files that are not images (1 .txt)",
    )
    assert splits.train.load(2).shape == (10, 12, 3)


@pytest.mark.parametrize("val", ["val", "valid", "Validation"])
def test_a_folder_with_splits_is_read_as_such(tmp_path: Path, val: str) -> None:
    root = tmp_path / "d"
    class_folders(root / "train", {"a": 3, "b": 2})
    class_folders(root / val, {"b": 1}, seed=10)
    class_folders(root / "test", {"a": 1, "b": 1}, seed=20)
    class_folders(root / "extra", {"a": 1}, seed=30)
    splits = watched(root)
    assert splits.reader == "folder with splits"
    assert [(name, len(part)) for name, part in splits.parts()] == [("train", 5), ("val", 1), ("test", 2)]
    assert labeled(splits.val) == [(f"{val}/b/0.png", "b")]
    assert splits.notes == ("left out, since there is a train folder: 'extra'",)


def test_a_class_called_train_is_a_class(tmp_path: Path) -> None:
    splits = watched(class_folders(tmp_path / "d", {"train": 2, "car": 1, "test": 1}))
    assert splits.classes == ("car", "test", "train")


def test_a_loose_image_beside_the_classes_of_a_split_does_not_turn_splits_into_classes(tmp_path: Path) -> None:
    for split in ("train", "val"):
        class_folders(tmp_path / "d" / split, {"a": 1, "b": 1})
    save(tmp_path / "d" / "train" / "overview.png")
    splits = watched(tmp_path / "d")
    assert splits.classes == ("a", "b")
    assert splits.notes == ("train: left out: 1 image beside the class folders",)


@pytest.mark.parametrize(
    "names", ["train_set test_set", "training_data testing_data", "seg_train seg_test", "Trainset Val1"]
)
def test_folders_named_like_splits_are_not_taken_for_classes(tmp_path: Path, names: str) -> None:
    for name in names.split():
        class_folders(tmp_path / "d" / name, {"a": 1, "b": 1})
    error = refused(tmp_path / "d")
    assert "looks like splits, not classes" in error.cause
    assert "train, val and test" in error.remedy
    save(tmp_path / "classes" / "training shoe" / "1.png")
    save(tmp_path / "classes" / "test tube" / "1.png")
    assert len(watched(tmp_path / "classes").classes) == 2


def test_a_test_folder_without_classes_is_left_out_with_a_note(tmp_path: Path) -> None:
    class_folders(tmp_path / "d" / "train", {"a": 1, "b": 1})
    save(tmp_path / "d" / "test" / "1.png")
    splits = watched(tmp_path / "d")
    assert splits.test is None
    assert splits.notes == ("left out: test has no class folders",)


def test_a_class_only_in_val_or_test_is_refused_by_name_unless_allowed(tmp_path: Path) -> None:
    class_folders(tmp_path / "d" / "train", {"a": 1, "b": 1})
    class_folders(tmp_path / "d" / "test", {"lynx": 1})
    (tmp_path / "d" / "test" / "empty").mkdir()
    error = refused(tmp_path / "d")
    assert error.cause == "class without a training image: 'lynx' (only in validation or test: 'lynx')"
    splits = watched(tmp_path / "d", allow_empty_classes=True)
    assert splits.classes == ("a", "b", "lynx")
    assert splits.test.counts.tolist() == [0, 0, 1]


def test_a_class_without_training_images_is_refused_unless_allowed(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "d", {"a": 2, "empty": 0, "b": 1})
    error = refused(root)
    assert "'empty'" in error.cause
    assert "--set data.allow_empty_classes=true" in error.remedy
    splits = watched(root, allow_empty_classes=True)
    assert splits.train.counts.tolist() == [2, 1, 0]


def test_folders_that_are_no_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no class folders" in refused(tmp_path / "empty").cause
    save(tmp_path / "flat" / "1.png")
    assert "images but no class folders" in refused(tmp_path / "flat").cause
    (tmp_path / "flat" / "labels.csv").write_text("path,label\n1.png,a\n")
    assert refused(tmp_path / "flat").remedy.endswith("labels.csv")
    (tmp_path / "hollow" / "a").mkdir(parents=True)
    assert "no image in the folders" in refused(tmp_path / "hollow").cause
    class_folders(tmp_path / "notrain" / "test", {"a": 1})
    assert "no train folder" in refused(tmp_path / "notrain").cause
    class_folders(tmp_path / "two" / "train", {"a": 1})
    class_folders(tmp_path / "two" / "val", {"a": 1})
    class_folders(tmp_path / "two" / "valid", {"a": 1})
    assert "both 'val' and 'valid'" in refused(tmp_path / "two").cause


def test_one_class_alone_is_refused_and_the_folder_of_the_classes_is_named(tmp_path: Path) -> None:
    class_folders(tmp_path / "wrap" / "data set" / "images", {"a": 2, "b": 2})
    class_folders(tmp_path / "one" / "a", {"left": 2})
    for folder, remedy in (("wrap", "perhaps 'data set/images' in it"), ("one", "perhaps its parent")):
        with pytest.raises(UserError, match="all training images are of one class") as error:
            refuse_one_class(read(tmp_path / folder))
        assert error.value.remedy == f"give a folder of class folders: {remedy}"


def test_images_with_masks_in_split_folders_are_not_taken_for_classes(tmp_path: Path) -> None:
    for name in ("train", "trainannot", "test", "testannot"):
        save(tmp_path / "scenes" / name / "1.png")
    error = refused(tmp_path / "scenes")
    assert error.cause.endswith("train' has no class folders")
    assert "--task segmentation" in error.remedy
    for name in ("train", "car"):  # two things to ride in
        save(tmp_path / "vehicles" / name / "1.png")
    assert watched(tmp_path / "vehicles").classes == ("car", "train")


def test_links_are_followed_once_and_dangling_ones_are_not_passed_over(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "d", {"a": 1})
    (root / "a" / "loop").symlink_to(root / "a")
    (root / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (root / "b").symlink_to(class_folders(tmp_path / "elsewhere", {"b": 2}) / "b")
    splits = watched(root)
    assert tuple(splits.train.names) == ("a/0.png", "a/gone.png", "b/0.png", "b/1.png")
    with pytest.raises(UserError, match="does not exist"):
        splits.train.load(1)


def test_files_to_predict_are_found_through_links_and_in_a_folder_of_archives(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "d", {"a": 1})
    (root / "loop").symlink_to(root)
    (root / "linked").symlink_to(class_folders(tmp_path / "elsewhere", {"b": 2}))
    for added in ("__MACOSX", "@eaDir"):
        save(root / added / "0.png")
    save(root / ".hidden" / "0.png")
    found = [root / "a" / "0.png", root / "linked" / "b" / "0.png", root / "linked" / "b" / "1.png"]
    assert find_files([root]) == found
    (tmp_path / "shards").mkdir()
    for shard in ("0.tar", "1.tar"):
        with tarfile.open(tmp_path / "shards" / shard, "w") as archive:
            archive.add(root / "a" / "0.png", "0.png")
    assert list(map(str, find_files([tmp_path / "shards"]))) == [f"{tmp_path}/shards/{k}.tar/0.png" for k in (0, 1)]
    save(tmp_path / "shards" / "beside.png")  # photos beside a backup of them
    assert len(find_files([tmp_path / "shards"])) == 3


def test_training_lists_written_on_windows_are_lists_of_files_too(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "d", {"a": 1, "b": 1})
    for name in ("all.txt", "all.lst", "all.list"):
        (root / name).write_text("a\\0.png 0\r\nb\\0.png 1\r\n")
        assert find_files([root / name]) == [root / "a" / "0.png", root / "b" / "0.png"]


def test_class_folders_with_splits_inside_are_refused(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        class_folders(tmp_path / "d" / name, {"train": 2, "test": 1})
    with pytest.raises(UserError, match="have folders for splits"):
        read(tmp_path / "d")


def test_names_that_are_not_utf8_stay_printable(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "d", {"a": 1})
    os.rename(root / "a" / "0.png", os.fsencode(root / "a") + b"/\xff\n.png")
    splits = read(root)
    assert tuple(splits.train.names) == ("a/\\xff\n.png",)
    splits.train.names[0].encode("utf-8")
    assert splits.train.load(0).shape == (10, 12, 3)


def test_a_very_long_name_is_read(tmp_path: Path) -> None:
    root = tmp_path / "d"
    save(root / ("c" * 200) / ("d" * 200) / ("i" * 200 + ".png"))
    assert len(watched(root).train) == 1


def test_unknown_paths_list_what_is_understood(tmp_path: Path) -> None:
    for name in ("a.zip", "a.bin"):
        (tmp_path / name).write_bytes(b"PK")
        assert "give a folder of class folders" in refused(tmp_path / name).remedy
    assert "is one image" in refused(save(tmp_path / "one.png")).cause


def test_a_root_is_refused_where_nothing_is_relative_to_it(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "d", {"a": 2, "b": 2})
    with pytest.raises(UserError, match="--root is for tables and lists of images"):
        read(root, root=tmp_path)


def test_a_run_is_not_data(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("")
    assert "is a run, not data" in refused(tmp_path / "run").cause


def test_a_path_that_does_not_exist_suggests_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "animals").mkdir()
    assert "did you mean 'animals'?" in refused(tmp_path / "animls").cause
    assert "nor does its folder" in refused(tmp_path / "no" / "where").cause
    assert "does not exist" in refused("~nobody-of-this-name").cause
    assert "did you mean 'digits'?" in refused("digitz").cause


def test_digits_are_real_and_always_split_alike() -> None:
    splits = read("digits")
    assert splits.reader == "scikit-learn's digits"
    assert splits.classes == tuple("0123456789")
    assert len(splits.train) + len(splits.test) == 1797
    assert splits.train.images.shape[1:] == (8, 8, 3)
    assert (splits.train.images.min(), splits.train.images.max()) == (0, 255)
    assert not set(splits.train.names) & set(splits.test.names)
    assert splits.test.counts.min() > 40
    assert read("digits").test.names == splits.test.names  # type: ignore[union-attr]


def test_a_url_is_not_looked_for_among_files() -> None:
    with pytest.raises(UserError, match="gpaco does not download images"):
        find_files(["https://example.com/a.jpg"])


def test_a_split_without_images_is_left_out_with_a_note(tmp_path: Path) -> None:
    class_folders(tmp_path / "d" / "train", {"a": 3, "b": 2})
    class_folders(tmp_path / "d" / "test", {"a": 1, "b": 1})
    for name in ("a", "b"):
        (tmp_path / "d" / "val" / name).mkdir(parents=True)
    splits = read(tmp_path / "d")
    assert splits.val is None
    assert "left out: val has no images" in splits.notes
    assert splits.test is not None


def test_the_word_digits_is_not_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(tmp_path / "digits", {"a": 3, "b": 2})
    monkeypatch.chdir(tmp_path)
    assert len(read("digits").classes) == 10
    for folder in ("./digits", Path("digits"), tmp_path / "digits"):
        assert read(folder).classes == ("a", "b")


def test_a_folder_that_may_not_be_read_is_named() -> None:
    with TemporaryDirectory() as name:  # the folders of pytest are for root alone
        root = class_folders(Path(name), {"ant": 2, "bee": 2})
        root.chmod(0o755)
        (root / "bee").chmod(0)
        with without_rights(), pytest.raises(UserError, match=r"no permission to read the folder '.*bee'"):
            read(root)
        (root / "bee").chmod(0o755)
