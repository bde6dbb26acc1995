"""Folders of images: one folder per class, or `train`, `val` and `test` with class folders in each."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from unicodedata import normalize

import numpy as np

from gpaco.data.images import SUFFIXES
from gpaco.data.readers.rows import TABLES
from gpaco.data.samples import IMAGE_WORDS, MASK_WORDS, SPLIT_WORDS, NamesBelow, Samples, Splits
from gpaco.data.walk import entries, files_below, is_image
from gpaco.errors import UserError
from gpaco.system.words import plural, printable, some


def read_folder(path: Path) -> Splits:
    """Read the images below each class folder, at any depth; classes are the folder names, sorted.

    Names are compared after Unicode normalization: macOS may store an accented letter as two characters, Linux as one.

    Hidden files and files without an image suffix are left out. No file is opened.
    """
    splits = _split_folders(path)
    skipped, notes = Counter[str](), _beside(path)
    if splits is None:
        classes = _classes(path)
        if not classes:
            raise _no_classes(path)
        _refuse_masks(path, classes)
        _refuse_splits(path)
        _refuse_inner_splits(path)
        train = _samples(path, path, classes, skipped)
        if len(train) == 0:
            raise UserError(f"no image in the folders of {str(path)!r}", f"images end in {' '.join(sorted(SUFFIXES))}")
        return Splits(train, None, None, "folder of class folders", (*notes, *_left_out(skipped)))
    others = sorted(set(_folders(path)) - {folder.name for folder in splits.values()})
    if others:
        notes.append(f"left out, since there is a train folder: {some(others)}")
    classes = _classes(splits["train"])
    _refuse_masks(splits["train"], classes)
    empty = [folder for folder in splits.values() if not _by_class(folder)]
    notes += [f"left out: {folder.name} has no class folders" for folder in empty]
    found = {name: folder for name, folder in splits.items() if folder not in empty}
    for folder in found.values():
        notes += [f"{folder.name}: {note}" for note in _beside(folder)]
        new = {name: inside for name, inside in _by_class(folder).items() if name not in classes}
        more = [name for name, inside in new.items() if any(_images_below(folder / one, Counter()) for one in inside)]
        classes = tuple(sorted([*classes, *more]))  # those without a training image are refused later
    parts = {name: _samples(path, folder, classes, skipped) for name, folder in found.items()}
    notes += [f"left out: {found[name].name} has no images" for name, part in parts.items() if not part]
    notes += _left_out(skipped)
    val, test = (parts.get(name) or None for name in ("val", "test"))
    return Splits(parts["train"], val, test, "folder with splits", tuple(notes))


def _split_folders(path: Path) -> dict[str, Path] | None:
    """Return the folders of the splits; None if the folders are classes (a class may be named train)."""
    found: dict[str, Path] = {}
    names = _folders(path)
    for name in names:
        split = SPLIT_WORDS.get(name.lower())
        if split in found:
            raise UserError(f"{str(path)!r} has both {found[split].name!r} and {name!r}", "keep one of the two")
        if split is not None:
            found[split] = path / name
    if "train" not in found:
        if found and len(found) == len(names):
            raise UserError(
                f"{str(path)!r} has {some(names)} but no train folder", "add it, or give a folder of class folders"
            )
        return None
    train = found["train"]
    own = tuple(folder.name for folder in found.values())
    if len(found) > 1 and not _folders(train) and all(name.startswith(own) for name in names):  # also trainannot
        raise UserError(
            f"{str(train)!r} has no class folders",
            "put the images of each class into a folder of its own; images with masks need --task segmentation",
        )
    if not _folders(train) or (len(found) == 1 and _beside(train)):
        return None
    return found


def _refuse_masks(path: Path, classes: Sequence[str]) -> None:
    """Raise an error if the only two folders are named like images and masks, which make no sense as classes."""
    words = {name.lower() for name in classes}
    images, masks = ({word.lower() for word in known} for known in (IMAGE_WORDS, MASK_WORDS))
    if len(classes) == 2 and words & images and words & masks:
        raise UserError(
            f"{str(path)!r} looks like images and masks, not classes: it has only {some(classes)}",
            "to train a segmenter: --task segmentation; if they are classes after all, rename one of them",
        )


def _refuse_splits(path: Path) -> None:
    """Raise an error if folders are named like splits (train_set, seg_test), and the one for training has classes."""
    found: dict[str, str] = {}
    for name in _folders(path):
        parts = re.split(r"[^a-z]", name.lower())
        found |= {split: name for split in ("train", "val", "test") if any(part.startswith(split) for part in parts)}
    if len(set(found.values())) > 1 and "train" in found and len(_folders(path / found["train"])) > 1:
        raise UserError(
            f"{str(path)!r} looks like splits, not classes: it has {some(sorted(found.values()))}",
            "name the folders of the splits train, val and test; if they are classes after all, rename one of them",
        )


def _refuse_inner_splits(path: Path) -> None:
    """Raise an error if every class folder has folders for splits, whose images would all be training images."""
    inner = ({name.lower() for name in _folders(path / folder)} for folder in _folders(path))
    if all(len(names) > 1 and names <= SPLIT_WORDS.keys() for names in inner):
        raise UserError(
            f"the class folders of {str(path)!r} have folders for splits",
            "put the classes inside train and test",
        )


def _samples(root: Path, folder: Path, classes: tuple[str, ...], skipped: Counter[str]) -> Samples:
    paths: list[str] = []
    labels: list[int] = []
    inside = _by_class(folder)
    for label, name in enumerate(classes):
        images = [image for own in inside.get(name, []) for image in _images_below(folder / own, skipped)]
        paths += images
        labels += [label] * len(images)
    found = tuple(paths)
    names = NamesBelow(os.path.join(root, ""), found)
    return Samples(np.array(labels), tuple(map(printable, classes)), paths=found, names=names)


def _images_below(folder: Path, skipped: Counter[str]) -> list[str]:
    """Return the image files at any depth, sorted; those that are dangling links become bad images."""
    found = []
    for file in files_below(folder):
        if is_image(file):
            found.append(file)
        else:
            skipped[os.path.splitext(file)[1].lower() or "no suffix"] += 1
    return sorted(found)


def _by_class(path: Path) -> dict[str, list[str]]:
    """Return the class folders by class name."""
    found: dict[str, list[str]] = {}
    for name in _folders(path):
        found.setdefault(normalize("NFC", name), []).append(name)
    return found


def _classes(path: Path) -> tuple[str, ...]:
    return tuple(sorted(_by_class(path)))


def _folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in entries(path) if entry.is_dir())


def _beside(path: Path) -> list[str]:
    loose = sum(is_image(entry.name) for entry in entries(path) if not entry.is_dir())
    return [f"left out: {plural(loose, 'image')} beside the class folders"] if loose else []


def _left_out(skipped: Counter[str]) -> list[str]:
    kinds = ", ".join(f"{count} {suffix}" for suffix, count in skipped.most_common(5))
    return [f"left out: files that are not images ({kinds})"] if skipped else []


def _no_classes(path: Path) -> UserError:
    names = [entry.name for entry in entries(path)]
    tables = [name for name in sorted(names) if name.lower().endswith((*TABLES, ".txt"))]
    if tables:
        return UserError(
            f"{str(path)!r} has no class folders", f"to read a table or list, give the file itself: {path / tables[0]}"
        )
    what = "images but no class folders" if any(map(is_image, names)) else "no class folders"
    return UserError(f"{str(path)!r} has {what}", "put the images of each class into their own folder")
