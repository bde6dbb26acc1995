"""Published sets of corrupted images in their own folders: what is read, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from helpers.images import save

from gpaco.data.class_maps import NUMBERS, class_map, is_imagenet, published_as, translate_classes
from gpaco.data.corruption.corruptions import SEVERITIES
from gpaco.data.corruption.published import Arrays, Tree, read_shifted
from gpaco.data.images import read_image
from gpaco.data.samples import Samples
from gpaco.errors import UserError
from gpaco.tasks.classification.class_match import match, matched, restricted


def tree(root: Path, names: tuple[str, ...] = ("fog", "snow"), classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    """Two images of each class under every severity."""
    for c, name in enumerate(names):
        for severity in SEVERITIES:
            for k, own in enumerate(classes):
                for i in range(2):
                    save(root / name / str(severity) / own / f"{i}.png", seed=100 * c + 10 * severity + 2 * k + i)
    return root


def arrays(root: Path, names: tuple[str, ...] = ("fog", "snow"), n: int = 6, classes: int = 10) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in names:
        np.save(root / f"{name}.npy", rng.integers(0, 256, (5 * n, 32, 32, 3), np.uint8))
    np.save(root / "labels.npy", np.tile(rng.integers(0, classes, n, np.uint8), 5))
    return root


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_shifted(path)
    assert caught.value.exit_code == 2
    return caught.value.cause


def test_folders_of_imagenet_c_are_read(tmp_path: Path) -> None:
    found = read_shifted(tree(tmp_path))
    assert isinstance(found, Tree)
    assert found.classes == ("cat", "dog")
    assert found.labels.tolist() == [0, 0, 1, 1]
    assert found.names == ("cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png")
    assert found.conditions == tuple((name, s) for name in ("snow", "fog") for s in SEVERITIES)
    np.testing.assert_array_equal(found.load(("fog", 3), 2), read_image(tmp_path / "fog" / "3" / "dog" / "0.png"))


def test_folders_may_be_below_the_names_of_the_archives(tmp_path: Path) -> None:
    tree(tmp_path / "weather", ("fog",))
    tree(tmp_path / "digital", ("contrast",))
    tree(tmp_path / "extra", ("spatter",))  # in the archives, and not read
    found = read_shifted(tmp_path)
    assert {name for name, _ in found.conditions} == {"fog", "contrast"}
    tree(tmp_path, ("fog",))
    assert "fog is both in" in refused(tmp_path)


def test_other_folders_are_not_taken_for_corruptions(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "0.png")
    assert read_shifted(tmp_path) is None
    assert read_shifted(tmp_path / "cat" / "0.png") is None
    save(tmp_path / "fog" / "0.png")  # classes of a set about the weather
    assert read_shifted(tmp_path) is None


def test_a_misspelled_corruption_and_a_wrong_severity_are_named(tmp_path: Path) -> None:
    save(tree(tmp_path) / "forst" / "1" / "cat" / "0.png")
    assert "a folder 'forst' that is not one; did you mean 'frost'?" in refused(tmp_path)
    save(tree(tmp_path / "b") / "fog" / "6" / "cat" / "0.png")
    assert "a folder '6', which is not a severity" in refused(tmp_path / "b")


def test_a_severity_with_other_images_is_refused(tmp_path: Path) -> None:
    (tree(tmp_path) / "fog" / "4" / "dog" / "1.png").unlink()
    assert "fog/4 lacks 'dog/1.png', which" in refused(tmp_path)
    save(tree(tmp_path) / "fog" / "4" / "dgo" / "1.png")
    assert "fog/4 has 'dgo/1.png', which" in refused(tmp_path)


def test_arrays_of_cifar_c_are_read_severity_by_severity(tmp_path: Path) -> None:
    found = read_shifted(arrays(tmp_path, ("fog", "snow", "spatter")))
    assert isinstance(found, Arrays)
    assert found.reader == "cifar-10-c"
    assert found.classes[:2] == ("airplane", "automobile")
    assert len(found.labels) == 6
    whole = np.load(tmp_path / "fog.npy")
    np.testing.assert_array_equal(found.load(("fog", 4), 2), whole[3 * 6 + 2])
    assert set(found.conditions) == {(name, s) for name in ("snow", "fog") for s in SEVERITIES}
    np.save(tmp_path / "labels.npy", np.arange(6) + 94)
    hundred = read_shifted(tmp_path)
    assert hundred.reader == "cifar-100-c"
    assert hundred.classes[0] == "apple"


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    np.save(arrays(tmp_path / "a") / "labels.npy", np.arange(7))
    assert "labels of shape (7,) do not fit 30 images" in refused(tmp_path / "a")
    np.save(arrays(tmp_path / "b") / "labels.npy", np.arange(30) % 10)
    assert "differs between severities" in refused(tmp_path / "b")
    np.save(arrays(tmp_path / "c") / "fog.npy", np.zeros((25, 32, 32, 3), np.uint8))
    assert "not 30 RGB images" in refused(tmp_path / "c")
    np.save(arrays(tmp_path / "d") / "frots.npy", np.zeros(3))
    assert "frots.npy, which is not a corruption; did you mean 'frost'?" in refused(tmp_path / "d")
    np.save(arrays(tmp_path / "e") / "labels.npy", np.array([{"a": 1}], object), allow_pickle=True)
    assert "cannot read" in refused(tmp_path / "e")
    (arrays(tmp_path / "f") / "fog.npy").write_bytes(b"")
    assert "cannot read" in refused(tmp_path / "f")
    np.save(arrays(tmp_path / "g") / "labels.npy", np.tile(np.arange(95, 101), 5))
    assert "labels.npy has labels 95 to 100" in refused(tmp_path / "g")


def test_class_maps_are_subsets_of_imagenet_in_its_order() -> None:
    ids = class_map("imagenet")
    assert len(set(ids)) == 1000
    assert list(ids) == sorted(ids)
    rows = {name: [ids.index(wnid) for wnid in class_map(name)] for name in ("imagenet-r", "imagenet-a")}
    # First, last and some more of the indices that the authors' evaluation scripts list, and how many there are.
    assert rows["imagenet-r"][:8] == [1, 2, 4, 6, 8, 9, 11, 13]
    assert rows["imagenet-r"][-6:] == [965, 967, 980, 981, 983, 988]
    assert rows["imagenet-a"][:8] == [6, 11, 13, 15, 17, 22, 23, 27]
    assert rows["imagenet-a"][-6:] == [980, 981, 984, 986, 987, 988]
    assert [len(set(own)) for own in rows.values()] == [200, 200]
    assert sum(rows["imagenet-r"]) == 86135
    assert sum(rows["imagenet-a"]) == 102178
    assert all(own == sorted(own) for own in rows.values())
    assert [len(class_map(name)) for name in ("cifar10", "cifar100")] == [10, 100]


def test_imagenet_is_known_by_id_and_by_number() -> None:
    ids = class_map("imagenet")
    assert is_imagenet(ids)
    assert is_imagenet(tuple(sorted(NUMBERS)))  # as a folder lists them: 0, 1, 10, 100, ...
    assert not is_imagenet(ids[:999])
    assert translate_classes(["n01440764", "elsewhere"], NUMBERS) == ("0", "elsewhere")
    assert translate_classes(["10", "2"], ids) == (ids[10], ids[2])
    assert translate_classes(["10", "2"], ("2", "10")) == ("10", "2")
    assert published_as(class_map("imagenet-a")) == "imagenet-a"
    assert published_as(tuple(sorted(NUMBERS))) == "imagenet-v2"
    assert published_as(ids) is published_as(class_map("imagenet-r")[:199]) is None


def test_folders_of_imagenet_v2_are_numbers_not_words() -> None:
    ids, folders = class_map("imagenet"), tuple(sorted(NUMBERS))
    labels = np.array([folders.index("2"), folders.index("10"), folders.index("999")])
    assert [ids[label] for label in match(labels, folders, ids).labels] == [ids[2], ids[10], ids[999]]


def test_classes_are_matched_by_name_and_others_left_out() -> None:
    found = match(np.array([0, 1, 1, 2, 0]), ("cow", "cat", "dog"), ("ant", "cat", "dog", "eel"))
    assert found.labels.tolist() == [-1, 1, 1, 2, -1]
    assert found.known.tolist() == [1, 2, 3]
    assert found.unknown == ("cow",)
    assert found.absent == ("ant", "eel")
    assert found.there.tolist() == [False, True, True, False]
    assert found.dropped == 2
    assert match(np.array([1]), ("cow", "cat"), ("cat",)).unknown == ()  # a class without an image is not missed
    with pytest.raises(
        UserError, match=r"none of the classes of the data is in the model: 'cta'; did you mean 'cat'\?"
    ):
        match(np.array([0]), ("cta",), ("cat", "dog"))


def test_restriction_is_what_a_loop_over_the_classes_there_gives() -> None:
    rng = np.random.default_rng(0)
    ids, few = class_map("imagenet"), class_map("imagenet-r")
    labels = rng.integers(0, 200, 50)
    logits = rng.normal(size=(50, 1000)).astype(np.float32)
    found = match(labels, few, ids)
    answers = restricted(logits, found.there).argmax(1)
    for row, answer, label in zip(logits, answers, found.labels, strict=True):
        best, chosen = -np.inf, ""
        for wnid in sorted({few[k] for k in labels}):
            if row[ids.index(wnid)] > best:
                best, chosen = row[ids.index(wnid)], wnid
        assert ids[answer] == chosen
        assert ids[label] in few
    assert [ids[c] for c in found.labels] == [few[k] for k in labels]


def test_samples_keep_their_images_and_names_when_matched() -> None:
    images = np.arange(3 * 4 * 4 * 3, dtype=np.uint8).reshape(3, 4, 4, 3)
    samples = Samples(np.array([1, 0, 1]), ("x", "b"), images=images, names=("p", "q", "r"))
    chosen, found = matched(samples, ("a", "b"))
    assert chosen.names == ("p", "r")
    assert chosen.labels.tolist() == [1, 1]
    np.testing.assert_array_equal(chosen.images, images[[0, 2]])
    assert found.notes(("a", "b"))[0].startswith(
        "left out: 1 of these 3 images, of 1 class that the model does not know: 'x'"
    )
