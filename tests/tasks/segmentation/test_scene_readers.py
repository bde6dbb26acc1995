"""Readers of segmentation data: every layout gives the same kind of scenes; what is wrong is named."""

import shutil
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
from helpers.scenes import scene_folder
from numpy.typing import NDArray
from PIL import Image

from gpaco.errors import UserError
from gpaco.tasks.segmentation.readers.benchmarks import CITYSCAPES_IDS, class_names
from gpaco.tasks.segmentation.readers.folders import read_classes
from gpaco.tasks.segmentation.readers.read import read_scenes
from gpaco.tasks.segmentation.scenes import in_order_of, pixel_counts


def image(path: Path, size: tuple[int, int] = (6, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(sum(map(ord, path.name)))
    Image.fromarray(draw.integers(0, 256, (*size, 3)).astype(np.uint8)).save(path)


def mask(path: Path, values: list[int], palette: bool = False) -> NDArray[np.uint8]:
    """A mask of 6 x 8 pixels in columns of these values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.resize(np.array(values, np.uint8), (6, 8))
    image = Image.fromarray(array)
    if palette:
        image = image.convert("P")
        image.putpalette([k % 256 for k in range(768)])
        image.putdata(array.ravel().tolist())
    image.save(path)
    return array


def test_camvid_in_segnets_layout(tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        image(tmp_path / part / "a.jpg")
        mask(tmp_path / f"{part}annot" / "a.png", [0, 10, 11])
    splits = read_scenes(tmp_path)
    assert splits.reader.startswith("CamVid")
    assert len(splits.classes) == 11
    assert [name for name, _ in splits.parts()] == ["train", "val", "test"]
    assert set(np.unique(splits.train.load(0)[1])) == {0, 10, 255}


def test_ade20k_drops_number_0_and_shifts_the_rest(tmp_path: Path) -> None:
    for part in ("training", "validation"):
        image(tmp_path / "images" / part / "ADE_1.jpg")
        mask(tmp_path / "annotations" / part / "ADE_1.png", [0, 1, 150])
    splits = read_scenes(tmp_path)
    assert splits.reader.startswith("ADE20K")
    assert splits.classes[0] == "wall"
    assert splits.classes[149] == "flag"
    assert set(np.unique(splits.train.load(0)[1])) == {255, 0, 149}


@pytest.mark.parametrize("made", [True, False])
def test_cityscapes_with_train_numbers_or_its_own(tmp_path: Path, made: bool) -> None:
    ending, values = ("labelTrainIds", [0, 18, 255]) if made else ("labelIds", [7, 33, 0, 4])
    for part in ("train", "val"):
        image(tmp_path / "leftImg8bit" / part / "bonn" / "bonn_1_leftImg8bit.png")
        mask(tmp_path / "gtFine" / part / "bonn" / f"bonn_1_gtFine_{ending}.png", values)
    splits = read_scenes(tmp_path)
    assert splits.reader.startswith("Cityscapes")
    assert set(np.unique(splits.train.load(0)[1])) == {0, 18, 255}


def test_linked_folders_of_images_and_masks_are_read(tmp_path: Path) -> None:
    there = scene_folder(tmp_path / "there", train=2, val=0, test=0)
    for kind in ("images", "masks"):
        (tmp_path / "d" / kind).mkdir(parents=True)
        (tmp_path / "d" / kind / "first").symlink_to(there / kind / "train")
    assert read_scenes(tmp_path / "d").train.names == ("images/first/0.png", "images/first/1.png")


def test_two_folders_for_one_split_are_refused(tmp_path: Path) -> None:
    for kind in ("images", "masks"):
        shutil.copytree(scene_folder(tmp_path / "d") / kind / "val", tmp_path / "d" / kind / "valid")
        for split in ("val", "valid"):
            shutil.copytree(tmp_path / "d" / kind / "test", tmp_path / "around" / split / kind)
    for folder, both in (("d", "'images/val' and 'images/valid'"), ("around", "'val/images' and 'valid/images'")):
        with pytest.raises(UserError, match=f"has both {both}"):
            read_scenes(tmp_path / folder)


def test_a_split_with_images_and_no_known_folder_of_masks_is_refused(tmp_path: Path) -> None:
    for split, masks in (("train", "masks"), ("val", "segments")):
        shutil.copytree(scene_folder(tmp_path / "d") / "images" / "train", tmp_path / "around" / split / "images")
        shutil.copytree(tmp_path / "d" / "masks" / "train", tmp_path / "around" / split / masks)
    with pytest.raises(UserError, match="val/images, but no folder of masks beside it"):
        read_scenes(tmp_path / "around")


def test_cityscapes_numbers_name_each_class_once() -> None:
    assert sorted(CITYSCAPES_IDS.values()) == list(range(19))


def test_coco_stuff_10k(tmp_path: Path) -> None:
    for part in ("train2014", "test2014"):
        image(tmp_path / "images" / part / "COCO_1.jpg")
        mask(tmp_path / "annotations" / part / "COCO_1_labelTrainIds.png", [0, 1, 171])
    splits = read_scenes(tmp_path)
    assert splits.reader.startswith("COCO-Stuff")
    assert set(np.unique(splits.train.load(0)[1])) == {255, 0, 170}
    assert splits.test is not None


@pytest.mark.parametrize("context", [True, False])
def test_pascal_context_and_voc_by_their_lists(tmp_path: Path, context: bool) -> None:
    folder, lists = (
        ("SegmentationClassContext", "SegmentationContext") if context else ("SegmentationClass", "Segmentation")
    )
    for name, part in (("a", "train"), ("b", "val"), ("c", "")):
        image(tmp_path / "JPEGImages" / f"{name}.jpg")
        mask(tmp_path / folder / f"{name}.png", [0, 1, 20, 255], palette=True)
        if part:
            (tmp_path / "ImageSets" / lists).mkdir(parents=True, exist_ok=True)
            (tmp_path / "ImageSets" / lists / f"{part}.txt").write_text(f"{name}\n")
    splits = read_scenes(tmp_path)
    assert len(splits.classes) == (59 if context else 21)
    assert (len(splits.train), len(splits.test or ())) == (1, 1)
    assert set(np.unique(splits.train.load(0)[1])) == ({255, 0, 19} if context else {0, 1, 20, 255})


@pytest.mark.parametrize("layout", ["inside", "around", "none"])
def test_anyones_images_and_masks_with_or_without_parts(tmp_path: Path, layout: str) -> None:
    places = {
        "inside": ("images/train", "masks/train", "images/val", "masks/val"),
        "around": ("train/images", "train/masks", "val/images", "val/masks"),
        "none": ("images", "masks"),
    }[layout]
    for k, place in enumerate(places):
        name = f"street {k // 2}"
        image(tmp_path / place / f"{name}.jpg") if k % 2 == 0 else mask(tmp_path / place / f"{name}.png", [0, 2, 255])
    splits = read_scenes(tmp_path)
    assert splits.classes == ("0", "1", "2")
    assert (splits.val is None) == (layout == "none")
    assert any("255 is no class" in note for note in splits.notes)
    assert pixel_counts(splits.train).tolist()[1] == 0


def test_masks_in_colors_are_read_by_their_table(tmp_path: Path) -> None:
    image(tmp_path / "images" / "a.png")
    (tmp_path / "masks").mkdir()
    colors = np.zeros((6, 8, 3), np.uint8)
    colors[:, 4:] = (10, 20, 30)
    colors[0, 0] = (1, 1, 1)
    Image.fromarray(colors).save(tmp_path / "masks" / "a.png")
    table = "name,r,g,b\nroad,0,0,0\nsky,10,20,30\n"
    for text in (table, table.replace("name", "Class_Name"), table.replace(",", ";"), table.replace(",", "\t")):
        (tmp_path / "classes.csv").write_text(text)
        splits = read_scenes(tmp_path)
        assert splits.classes == ("road", "sky")
        found = splits.train.load(0)[1]
        assert found[0, 0] == 255
        assert (found[1:, :4] == 0).all()
        assert (found[:, 4:] == 1).all()
    assert read_classes("building; wall\nsky", tmp_path) == (("building; wall", "sky"), ())
    assert read_classes("name\nroad;0;0;0\nsky;1;2;3\n", tmp_path)[1] == ((0, 0, 0), (1, 2, 3))


def test_black_is_no_class_in_gray_masks_in_colors_too(tmp_path: Path) -> None:
    image(tmp_path / "images" / "a.png")
    mask(tmp_path / "masks" / "a.png", [0, 64, 128])
    (tmp_path / "classes.csv").write_text("name,r,g,b\nroad,64,64,64\nsky,128,128,128\n")
    assert read_scenes(tmp_path).train.load(0)[1][0, :3].tolist() == [255, 0, 1]


def test_images_and_masks_whose_accents_are_written_in_two_ways_are_pairs(tmp_path: Path) -> None:
    image(tmp_path / "images" / f"{normalize('NFD', 'Käse')}.png")
    mask(tmp_path / "masks" / f"{normalize('NFC', 'Käse')}_mask.png", [0, 1])
    assert len(read_scenes(tmp_path).train) == 1


def test_what_is_wrong_with_a_pair_is_said_with_its_name(tmp_path: Path) -> None:
    image(tmp_path / "images" / "a.png", size=(5, 5))
    mask(tmp_path / "masks" / "a.png", [0, 1])
    with pytest.raises(UserError, match=r"a.png has 8 x 6 pixels, its image 5 x 5"):
        read_scenes(tmp_path).train.load(0)
    (tmp_path / "classes.txt").write_text("only\n")
    with pytest.raises(UserError, match=r"a.png has the value 1, but there are 1 classes"):
        read_scenes(tmp_path).train.load_mask(0)
    (tmp_path / "classes.txt").unlink()
    image(tmp_path / "masks" / "a.png")
    with pytest.raises(UserError, match="is a color image"):
        read_scenes(tmp_path)
    image(tmp_path / "images" / "alone.png")
    with pytest.raises(UserError, match=r"no mask in .* for 1 image in .*alone.png"):
        read_scenes(tmp_path)


@pytest.mark.parametrize(
    "table", ["road,0,0\n", "road,0,0,999\n", "road\nroad\n", "a,1,1,1\nb,1,1,1\n", "a,1,1,1\nb\n", ""]
)
def test_a_spoilt_table_of_classes_is_named(tmp_path: Path, table: str) -> None:
    image(tmp_path / "images" / "a.png")
    mask(tmp_path / "masks" / "a.png", [0])
    (tmp_path / "classes.csv").write_text(table)
    with pytest.raises(UserError, match=r"classes.csv"):
        read_scenes(tmp_path)


def test_a_folder_of_another_kind_and_a_missing_one_are_errors_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no known layout of images and masks"):
        read_scenes(tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        read_scenes(tmp_path / "nowhere")


def test_the_class_lists_have_the_published_lengths_and_no_name_twice() -> None:
    sizes = {"ade20k": 150, "cityscapes": 19, "coco_stuff": 171, "pascal_context": 59, "pascal_voc": 21, "camvid": 11}
    for name, size in sizes.items():
        names = class_names(name)
        assert len(names) == len(set(names)) == size


def test_masks_may_have_a_suffix_and_folders_keep_equal_names_apart(tmp_path: Path) -> None:
    for k, city in enumerate(("bonn", "ulm")):
        image(tmp_path / "images" / city / "1.jpg")
        mask(tmp_path / "masks" / city / "1_mask.png", [k, 1 - k, 2])
    train = read_scenes(tmp_path).train
    assert [path.parent.name for path in train.masks] == ["bonn", "ulm"]
    assert [int(train.load(i)[1][0, 0]) for i in range(2)] == [0, 1]


def test_two_kinds_of_masks_for_each_image_are_an_error(tmp_path: Path) -> None:
    for name in ("a", "b"):
        image(tmp_path / "images" / f"{name}.jpg")
        for kind in ("label", "color"):
            mask(tmp_path / "masks" / f"{name}_{kind}.png", [0, 1])
    with pytest.raises(UserError, match="several masks for each image, with '_color' and '_label'"):
        read_scenes(tmp_path)


def test_two_masks_of_one_name_are_an_error(tmp_path: Path) -> None:
    image(tmp_path / "images" / "a.png")
    for ending in ("png", "bmp"):
        mask(tmp_path / "masks" / f"a.{ending}", [0, 1])
    with pytest.raises(UserError, match=r"a.png and a.bmp have the same name"):
        read_scenes(tmp_path)


@pytest.mark.parametrize("colors", [False, True])
def test_other_data_is_renumbered_to_a_models_classes_by_name(tmp_path: Path, colors: bool) -> None:
    image(tmp_path / "images" / "a.png")
    (tmp_path / "masks").mkdir()
    if colors:
        (tmp_path / "classes.csv").write_text("sky,10,20,30\nroad,0,0,0\n")
        array = np.zeros((6, 8, 3), np.uint8)
        array[:, 4:], array[0, 0] = (10, 20, 30), (1, 1, 1)
        Image.fromarray(array).save(tmp_path / "masks" / "a.png")
    else:
        (tmp_path / "classes.csv").write_text("sky\nroad\n")
        mask(tmp_path / "masks" / "a.png", [255, 1, 1, 1, 0, 0, 0, 0])
    train = read_scenes(tmp_path).train
    same = in_order_of(train, ("tree", "road", "sky"))
    assert same.classes == ("tree", "road", "sky")
    found = same.load(0)[1]
    assert found[0].tolist() == [255, 1, 1, 1, 2, 2, 2, 2]
    with pytest.raises(UserError, match="a class 'sky' that the model does not know"):
        in_order_of(train, ("road", "tree"))


def test_data_without_a_training_folder_is_read_for_evaluation(tmp_path: Path) -> None:
    for k, place in enumerate(("inside", "around")):
        root = tmp_path / place
        images, masks = (("images/test", "masks/test"), ("val/images", "val/masks"))[k]
        image(root / images / "a.png")
        mask(root / masks / "a.png", [0, 2])
        splits = read_scenes(root)
        assert [(name, len(part)) for name, part in splits.parts()] == [("train", 0), (("test", "val")[k], 1)]
        assert splits.classes == ("0", "1", "2")


def test_the_number_of_classes_is_that_of_all_masks_and_bad_ones_are_left_to_whoever_loads_them(tmp_path: Path) -> None:
    for k in range(120):
        image(tmp_path / "images" / f"{k:03}.png")
        mask(tmp_path / "masks" / f"{k:03}.png", [0, 4 if k == 77 else 1])
    (tmp_path / "masks" / "000.png").write_bytes(b"")
    seen: list[tuple[int, int]] = []
    splits = read_scenes(tmp_path, lambda done, total: seen.append((done, total)))
    assert len(splits.classes) == 5
    assert seen[-1] == (120, 120)
    with pytest.raises(UserError, match=r"000.png': the file is empty"):
        splits.train.load(0)


def test_more_classes_than_a_mask_can_hold_are_an_error(tmp_path: Path) -> None:
    image(tmp_path / "images" / "a.png")
    mask(tmp_path / "masks" / "a.png", [0, 253, 255])
    assert len(read_scenes(tmp_path).classes) == 254
    mask(tmp_path / "masks" / "a.png", [0, 254])
    with pytest.raises(UserError, match=r"a.png has the value 254, but class numbers are 0 to 253"):
        read_scenes(tmp_path)
    (tmp_path / "classes.txt").write_text("\n".join(f"class {k}" for k in range(300)))
    with pytest.raises(UserError, match=r"classes.txt has 300 classes, but at most 254 are possible"):
        read_scenes(tmp_path)


def test_text_that_is_not_utf8_is_read_as_latin_1_with_a_note(tmp_path: Path) -> None:
    image(tmp_path / "own" / "images" / "a.png")
    mask(tmp_path / "own" / "masks" / "a.png", [0, 1])
    (tmp_path / "own" / "classes.txt").write_bytes("road\nstra\xdfe\n".encode("latin-1"))
    own = read_scenes(tmp_path / "own")
    assert own.classes == ("road", "straße")
    assert "classes.txt: encoding: not UTF-8 (line 2), read as Latin-1" in own.notes
    voc = tmp_path / "voc"
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (voc / name).mkdir(parents=True)
    for part, name in (("train", "stra\xdfe"), ("val", "b")):
        (voc / "ImageSets" / "Segmentation" / f"{part}.txt").write_bytes(f"{name}\n".encode("latin-1"))
        image(voc / "JPEGImages" / f"{name}.jpg")
        mask(voc / "SegmentationClass" / f"{name}.png", [0, 1])
    splits = read_scenes(voc)
    assert splits.train.names == ("JPEGImages/straße.jpg",)
    assert "train.txt: encoding: not UTF-8 (line 1), read as Latin-1" in splits.notes
    (tmp_path / "own" / "classes.txt").write_bytes(b"road\0")
    with pytest.raises(UserError, match="it has zero bytes"):
        read_scenes(tmp_path / "own")


def test_a_table_of_classes_makes_a_benchmarks_folders_somebodys_own(tmp_path: Path) -> None:
    for part in ("training", "validation"):
        image(tmp_path / "images" / part / "a.jpg")
        mask(tmp_path / "annotations" / part / "a.png", [0, 1])
    (tmp_path / "classes.txt").write_text("leaf\nsoil\n")
    splits = read_scenes(tmp_path)
    assert splits.classes == ("leaf", "soil")
    assert not splits.published
    assert set(np.unique(splits.train.load(0)[1])) == {0, 1}


def test_class_numbers_where_the_table_has_colors_are_an_error(tmp_path: Path) -> None:
    for name, values in (("numbers", [0, 1, 2]), ("grays", [0, 255])):
        folder = tmp_path / name
        image(folder / "images" / "a.jpg")
        mask(folder / "masks" / "a.png", values)
        (folder / "classes.csv").write_text("ground,0,0,0\nsky,255,255,255\nsea,0,0,255\n")
    with pytest.raises(UserError, match="has the number 1, which is not a color in the table"):
        read_scenes(tmp_path / "numbers").train.load(0)
    assert set(np.unique(read_scenes(tmp_path / "grays").train.load(0)[1])) == {0, 1}


def test_what_programs_leave_in_folders_is_no_picture(tmp_path: Path) -> None:
    for place in ("a", "._a", ".ipynb_checkpoints/a", "__MACOSX/a"):
        image(tmp_path / "images" / f"{place}.jpg")
    mask(tmp_path / "masks" / "a.png", [0, 1])
    assert read_scenes(tmp_path).train.names == ("images/a.jpg",)


@pytest.mark.parametrize("word", ["../../secret", "/secret"])
def test_a_list_cannot_lead_out_of_the_data(tmp_path: Path, word: str) -> None:
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ImageSets" / "Segmentation" / "train.txt").write_text(f"{word}\n")
    with pytest.raises(UserError, match=f"names '{word}', .*outside the data"):
        read_scenes(tmp_path)


def test_a_missing_part_of_a_benchmark_is_named(tmp_path: Path) -> None:
    image(tmp_path / "images" / "training" / "a.jpg")
    mask(tmp_path / "annotations" / "training" / "a.png", [0, 1])
    with pytest.raises(UserError, match=r"there is no folder .*images.validation"):
        read_scenes(tmp_path)
