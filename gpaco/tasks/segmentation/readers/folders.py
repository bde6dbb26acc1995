"""Reads user folders of images and masks, with functions that other readers share."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np

from gpaco.data.agreement import check_same_everywhere
from gpaco.data.inspection import each
from gpaco.data.readers.rows import read_text
from gpaco.data.samples import IMAGE_WORDS, MASK_WORDS, SPLIT_WORDS
from gpaco.data.walk import images_below
from gpaco.errors import UserError
from gpaco.metrics.segmentation import IGNORE
from gpaco.system.progress import Progress, no_progress
from gpaco.system.words import plural, printable, some
from gpaco.tasks.segmentation.scenes import OWN, Color, Decode, Scenes, SceneSplits, numbered, read_numbers

TABLES = ("classes.csv", "class_dict.csv", "classes.txt")
HEADS = ("name", "names", "class", "classes", "class_name", "class name", "classname", "label", "labels", "category")
MOST = IGNORE - 1  # classes
Paths = tuple[Path, ...]


def read_pairs(folder: Path, progress: Progress = no_progress, *, shared: bool = False) -> SceneSplits | None:
    """Read `images` and `masks` with files of the same names; splits are folders inside or around them.

    Return None for other folders. Without a training folder, the training split is empty, for evaluation only. Without
    a table of classes, every mask is read to find its numbers; with `shared`, each process reads its share.
    """
    listed = {name: pairs(*where) for name, where in _pair_folders(folder).items()}
    if not listed:
        return None
    classes, colors, notes = own_classes(folder) or ((), (), [])
    gaps: tuple[str, ...] = ()

    def splits() -> SceneSplits:
        parts = {
            name: scenes_in(folder, images, masks, classes, decoding(classes, colors), colors)
            for name, (images, masks) in listed.items()
        }
        train = parts.get("train", next(iter(parts.values())).subset([]))
        reader = OWN + (" in colors" if colors else "")
        return SceneSplits(train, parts.get("val"), parts.get("test"), reader, tuple(notes), gaps=gaps)

    if not classes:
        masks = [mask for _, part in listed.values() for mask in part]
        if shared:
            check_same_everywhere(splits())
        numbers = _numbers_in(masks, progress, shared=shared)
        classes = tuple(str(k) for k in range(max(numbers) + 1))
        gaps = tuple(str(k) for k in range(max(numbers)) if k not in numbers)
        notes.append(f"{len(classes)} classes, from the largest number in {len(masks)} masks; 255 is no class")
    return splits()


def _numbers_in(masks: Sequence[Path], progress: Progress, *, shared: bool) -> set[int]:
    """Return the class numbers in mask files. Unreadable files are reported when they are loaded."""

    def look(i: int) -> dict[str, Any]:
        try:
            counts = np.bincount(read_numbers(masks[i]).ravel(), minlength=IGNORE + 1)
        except UserError as error:
            return {"error": [error.cause, error.remedy]}
        return {"numbers": np.flatnonzero(counts[:IGNORE]).tolist()}

    looked = each(len(masks), look, progress, shared=shared)
    for path, one in zip(masks, looked, strict=True):
        if (largest := max(one.get("numbers", []), default=0)) >= MOST:
            raise UserError(
                f"{printable(path)} has the value {largest}, but class numbers are 0 to {MOST - 1}",
                "write 255 for pixels that belong to no class",
            )
    if all("error" in one for one in looked):
        none = ["there are no masks to find the classes in", "put images and masks into the folders"]
        raise UserError(*next((one["error"] for one in looked), none))
    found = {number for one in looked for number in one.get("numbers", [])}
    if not any(found):
        raise UserError(
            f"the masks in {masks[0].parent} have only one class: only the number 0, and perhaps 255 for no class",
            "write class numbers 0, 1, ..., or for black and white masks a classes.csv: name,red,green,blue",
        )
    return found


def _pair_folders(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return the folders of each split: {"train": (images, masks), ...}; without splits, everything is for training."""
    image, mask = _first(folder, IMAGE_WORDS), _first(folder, MASK_WORDS)
    parts: list[tuple[str, Path | None, Path | None]]
    if image and mask:
        parts = [(name, part, mask / part.name) for name, part in _split_folders(image)] or [("train", image, mask)]
    else:
        around = _split_folders(folder)
        parts = [(name, _first(part, IMAGE_WORDS), _first(part, MASK_WORDS)) for name, part in around]
    found: dict[str, tuple[Path, Path]] = {}
    named = [name for name, image, mask in parts if image and mask]
    for name, image, mask in parts:
        if named and bool(image) != bool(mask):
            there, words = (image, MASK_WORDS) if image else (mask, IMAGE_WORDS)
            what = "masks" if image else "images"
            names = f"name it {' or '.join(words[:2])}"
            raise UserError(f"there is {there}, but no folder of {what} beside it", names)
        if image and mask:
            if name in found:
                both = " and ".join(repr(str(one.relative_to(folder))) for one in (found[name][0], image))
                raise UserError(f"{str(folder)!r} has both {both}", "keep one of the two")
            found[name] = image, mask
    return found


def _first(folder: Path, words: Iterable[str]) -> Path | None:
    return next((folder / word for word in words if (folder / word).is_dir()), None)


def _split_folders(folder: Path) -> list[tuple[str, Path]]:
    found = sorted(path for path in folder.iterdir() if path.is_dir() and path.name.lower() in SPLIT_WORDS)
    return [(SPLIT_WORDS[path.name.lower()], path) for path in found]


def pairs(images: Path, masks: Path, suffix: str | None = None) -> tuple[Paths, Paths]:
    """Return images and their masks, matched by folder and by name without extension.

    `suffix` is what the name of a mask adds to that of its image, such as "_mask"; detected unless given.
    """
    if not images.is_dir():
        raise UserError(f"there is no folder {images}", "add the missing files")
    if not masks.is_dir():
        raise UserError(f"there are images in {images} but no masks in {masks}", "put a mask for each image there")
    by_image, by_mask = _by_name(images), _by_name(masks)
    if suffix is None:
        suffix = _common_suffix(list(by_image), list(by_mask))
    alone = [printable(path.name) for name, path in by_image.items() if name + suffix not in by_mask]
    if alone:
        raise UserError(
            f"no mask in {masks} for {plural(len(alone), 'image')} in {images}: {some(alone)}",
            "give the mask the name of its image, or remove the image",
        )
    return tuple(by_image.values()), tuple(by_mask[name + suffix] for name in by_image)


def _common_suffix(images: list[str], masks: list[str]) -> str:
    """Return the suffix that all mask names add to those of their images; "" if there is no such suffix."""
    known = set(masks)
    endings = {name.removeprefix(images[0]) for name in masks if images and name.startswith(images[0])}
    fitting = sorted(end for end in endings if all(name + end in known for name in images))
    if len(fitting) > 1 and "" not in fitting:
        raise UserError(
            f"there are several masks for each image, with {fitting[0]!r} and {fitting[1]!r} after its name",
            "keep only one kind of mask in that folder",
        )
    return "" if "" in fitting or not fitting else fitting[0]


def _by_name(folder: Path) -> dict[str, Path]:
    """Return the images below a folder, sorted, by their relative path without extension."""
    found: dict[str, Path] = {}
    for path in images_below(folder):
        name = normalize("NFC", str(path.relative_to(folder).with_suffix("")))  # systems differ in storing accents
        if name in found:
            raise UserError(f"{path} and {found[name].name} have the same name", "remove one of them")
        found[name] = path
    return found


def scenes_in(
    folder: Path, images: Paths, masks: Paths, classes: tuple[str, ...], decode: Decode, colors: tuple[Color, ...] = ()
) -> Scenes:
    """Return scenes, named by the paths of their images relative to a folder."""
    names = tuple(printable(path.relative_to(folder)) for path in images)
    return Scenes(images, masks, classes, decode, names, colors)


def own_classes(folder: Path) -> tuple[tuple[str, ...], tuple[Color, ...], list[str]] | None:
    """Return names, colors, if any, and notes from the table of classes in a folder; None without a table."""
    table = next((folder / name for name in TABLES if (folder / name).is_file()), None)
    if table is None:
        return None
    text, decoded = read_text(table)
    return *read_classes(text, table), [f"classes from {table.name}", *(f"{table.name}: {note}" for note in decoded)]


def decoding(classes: tuple[str, ...], colors: tuple[Color, ...]) -> Decode:
    return Decode(colors=colors) if colors else numbered(len(classes))


def read_classes(text: str, path: Path) -> tuple[tuple[str, ...], tuple[Color, ...]]:
    """Return names and colors, if any, from rows `name` or `name,red,green,blue`, with or without a header.

    Cells may also be separated by ";" or tabs.
    """
    names: list[str] = []
    colors: list[Color] = []
    try:
        mark = next((one for one in ";\t" if any(line.count(one) == 3 for line in text.splitlines())), ",")
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=mark))
    except csv.Error as error:
        raise UserError(f"{path} is not a table of classes: {error}", "write one class per line") from error
    for line, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (line == 1 and cells[0].lower() in HEADS):
            continue
        try:
            numbers = [int(cell) for cell in cells[1:4]]
        except ValueError:
            numbers = [-1]
        if len(numbers) not in (0, 3) or not all(0 <= n <= 255 for n in numbers) or cells[0] in names:
            raise UserError(
                f"{path}, line {line}: expected name or name,red,green,blue, each name once, got {row}", "fix the line"
            )
        names.append(cells[0])
        if numbers:
            colors.append((numbers[0], numbers[1], numbers[2]))
    if len(names) > MOST:
        raise UserError(f"{path} has {len(names)} classes, but at most {MOST} are possible", "merge some of them")
    if not names or len(colors) not in (0, len(names)):
        raise UserError(
            f"{path} has {len(names)} classes and {len(colors)} colors",
            "give every class a color, or leave out all colors",
        )
    if len(set(colors)) < len(colors):
        raise UserError(f"{path} has the same color for two classes", "give every class a unique color")
    return tuple(names), tuple(colors)
