"""Readers of common benchmarks in their usual folders. Each returns None for a folder of another kind.

Class names are in classes/, one per line, ordered by their numbers in the mask files: ADE20K as in the list of the
scene-parsing challenge (the first word of each line), the others as published by their authors.
"""

from collections.abc import Sequence
from pathlib import Path

from gpaco.data.readers.rows import read_text
from gpaco.data.walk import files_below, images_below
from gpaco.errors import UserError
from gpaco.system.words import plural
from gpaco.tasks.segmentation.readers.folders import pairs, scenes_in
from gpaco.tasks.segmentation.scenes import Decode, SceneSplits, numbered

# Cityscapes' own class numbers (0 to 33) -> the 19 that are evaluated.
CITYSCAPES_IDS = {7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11, 25: 12, 26: 13}
CITYSCAPES_IDS |= {27: 14, 28: 15, 31: 16, 32: 17, 33: 18}

Colors = tuple[tuple[int, int, int], ...]
# The colors that papers use for these data sets, by class.
CAMVID_COLORS: Colors = ((128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (60, 40, 222), (128, 128, 0))
CAMVID_COLORS += ((192, 128, 128), (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192))
CITYSCAPES_COLORS: Colors = (
    (128, 64, 128),
    (244, 35, 232),
    (70, 70, 70),
    (102, 102, 156),
    (190, 153, 153),
    (153, 153, 153),
)
CITYSCAPES_COLORS += ((250, 170, 30), (220, 220, 0), (107, 142, 35), (152, 251, 152), (70, 130, 180), (220, 20, 60))
CITYSCAPES_COLORS += ((255, 0, 0), (0, 0, 142), (0, 0, 70), (0, 60, 100), (0, 80, 100), (0, 0, 230), (119, 11, 32))

REPORTED = (
    "the published validation split is used as the test split: papers report on it, so it must not select an epoch"
)


def class_names(data: str) -> tuple[str, ...]:
    """Return the classes of a benchmark, such as "ade20k"."""
    return tuple((Path(__file__).parent / "classes" / f"{data}.txt").read_text(encoding="utf-8").splitlines())


def read_camvid(folder: Path) -> SceneSplits | None:
    """Read CamVid with 11 classes in SegNet's layout: train/ and trainannot/, val/, test/; number 11 is no class."""
    if not all((folder / name).is_dir() for name in ("train", "trainannot")):
        return None
    names = class_names("camvid")
    decode = numbered(len(names), ignore=(11, 255))
    parts = {
        name: scenes_in(folder, *pairs(folder / name, folder / f"{name}annot"), names, decode, CAMVID_COLORS)
        for name in ("train", "val", "test")
        if (folder / name).is_dir()
    }
    return SceneSplits(parts["train"], parts.get("val"), parts.get("test"), "CamVid, 11 classes, SegNet's layout")


def read_ade20k(folder: Path) -> SceneSplits | None:
    """Read ADE20K of the scene-parsing challenge: images/training, annotations/training."""
    return _annotated(folder, "ade20k", ("training", "validation"), "ADE20K, 150 classes", notes=(REPORTED,))


def read_cityscapes(folder: Path) -> SceneSplits | None:
    """Read Cityscapes: leftImg8bit/train/CITY, gtFine/train/CITY; labelTrainIds if they exist, else labelIds."""
    left, fine = folder / "leftImg8bit", folder / "gtFine"
    if not (left / "train").is_dir() or not (fine / "train").is_dir():
        return None
    names = class_names("cityscapes")
    made = any(path.endswith("_gtFine_labelTrainIds.png") for path in files_below(fine / "train"))
    ending = "_gtFine_labelTrainIds" if made else "_gtFine_labelIds"
    decode = numbered(19) if made else Decode(values=tuple(CITYSCAPES_IDS.get(number, 255) for number in range(256)))
    parts = {}
    for part in ("train", "val"):
        found = images_below(left / part) if (left / part).is_dir() else []
        images = [path for path in found if path.name.endswith("_leftImg8bit.png")]
        masks = [fine / part / path.parent.name / path.name.replace("_leftImg8bit", ending) for path in images]
        parts[part] = scenes_in(folder, tuple(images), _existing(masks), names, decode, CITYSCAPES_COLORS)
    notes = (f"masks: {ending.removeprefix('_gtFine_')}", REPORTED)
    return SceneSplits(parts["train"], None, parts["val"], "Cityscapes, 19 classes", notes)


def read_coco_stuff(folder: Path) -> SceneSplits | None:
    """Read COCO-Stuff 10k as converted for mmsegmentation: images/train2014, annotations/train2014."""
    parts, reader = ("train2014", "test2014"), "COCO-Stuff 10k, 171 classes"
    return _annotated(folder, "coco_stuff", parts, reader, ending="_labelTrainIds")


def _annotated(
    folder: Path, data: str, parts: Sequence[str], reader: str, notes: Sequence[str] = (), ending: str | None = None
) -> SceneSplits | None:
    """Read training and test splits from images/PART and annotations/PART, where number 0 is no class."""
    images, masks = folder / "images", folder / "annotations"
    if not (images / parts[0]).is_dir() or not (masks / parts[0]).is_dir():
        return None
    names = class_names(data)
    decode = numbered(len(names), first=1)
    train, test = (scenes_in(folder, *pairs(images / part, masks / part, ending), names, decode) for part in parts)
    return SceneSplits(train, None, test, reader, ("number 0 in the masks is no class", *notes))


def read_pascal(folder: Path) -> SceneSplits | None:
    """Read PASCAL Context (59 classes; 0 is no class) or VOC (21 classes with background), split by their lists."""
    if not (folder / "JPEGImages").is_dir():
        return None
    if (folder / "SegmentationClassContext").is_dir():
        names, masks, lists = class_names("pascal_context"), "SegmentationClassContext", "SegmentationContext"
        decode, reader = numbered(59, first=1), "PASCAL Context, 59 classes"
    elif (folder / "SegmentationClass").is_dir() and (folder / "ImageSets" / "Segmentation").is_dir():
        names, masks, lists = class_names("pascal_voc"), "SegmentationClass", "Segmentation"
        decode, reader = numbered(21), "PASCAL VOC, 21 classes"
    else:
        return None
    parts, notes = {}, [REPORTED]
    for part in ("train", "val"):
        file = folder / "ImageSets" / lists / f"{part}.txt"
        if not file.is_file():
            raise UserError(f"there is no list {file}", "it must have the names of the images, one per line")
        text, decoded = read_text(file)
        notes += [f"{file.name}: {note}" for note in decoded]
        words = text.split()
        if out := [word for word in words if Path(word).is_absolute() or ".." in Path(word).parts]:
            raise UserError(
                f"{file} names {out[0]!r}, which is outside the data", "write names of images, one per line"
            )
        images = [folder / "JPEGImages" / f"{word}.jpg" for word in words]
        labels = [folder / masks / f"{word}.png" for word in words]
        parts[part] = scenes_in(folder, _existing(images), _existing(labels), names, decode)
    return SceneSplits(parts["train"], None, parts["val"], reader, tuple(notes))


def _existing(paths: list[Path]) -> tuple[Path, ...]:
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise UserError(f"missing: {plural(len(missing), 'file')}, such as {missing[0]}", "add the missing files")
    return tuple(paths)


BENCHMARKS = (read_cityscapes, read_camvid, read_ade20k, read_coco_stuff, read_pascal)
