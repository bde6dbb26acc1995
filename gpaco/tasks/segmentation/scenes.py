"""Images with masks: what every reader of segmentation data returns."""

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gpaco.data.images import read_image, read_stored, stored_mode
from gpaco.data.samples import DataSplits, hash_of_rows
from gpaco.errors import UserError, nearest
from gpaco.metrics.segmentation import IGNORE
from gpaco.system import distributed
from gpaco.system.prefetch import prefetch
from gpaco.system.progress import Progress, no_progress
from gpaco.system.words import printable

Color = tuple[int, int, int]
OWN = "folders of images and masks"  # the reader of user data


@dataclass(frozen=True)
class Decode:
    """How a mask file becomes classes: by the number in each pixel, or by its color.

    Args:
        values: the class of each number from 0 to 255; 255 for no class, -1 for a number that is an error.
        colors: the color of each number; other colors are 255. Without `values`, a color's number is its class.
    """

    values: tuple[int, ...] = ()
    colors: tuple[Color, ...] = ()


def numbered(num_classes: int, *, first: int = 0, ignore: Sequence[int] = (255,)) -> Decode:
    """Return the decoding of files in which class k has the number `first` + k, and numbers in `ignore` are no class.

    >>> numbered(3, first=1).values[:5]
    (255, 0, 1, 2, -1)
    """
    table = [*[IGNORE] * first, *range(num_classes), *[-1] * (256 - first - num_classes)]
    for value in ignore:
        table[value] = IGNORE
    return Decode(values=tuple(table))


@dataclass(frozen=True, eq=False)
class Scenes:
    """Images and masks as files that `load` decodes; `palette` has a color per class, to draw masks."""

    images: tuple[Path, ...]
    masks: tuple[Path, ...]
    classes: tuple[str, ...]
    decode: Decode
    names: tuple[str, ...]
    palette: tuple[Color, ...] = ()

    def __post_init__(self) -> None:
        if not self.palette:
            object.__setattr__(self, "palette", palette(len(self.classes)))

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, indices: Sequence[int] | NDArray[np.integer]) -> "Scenes":
        """Return the scenes at `indices`, in that order."""
        rows = [int(i) for i in indices]
        return replace(
            self,
            images=tuple(self.images[i] for i in rows),
            masks=tuple(self.masks[i] for i in rows),
            names=tuple(self.names[i] for i in rows),
        )

    @cached_property
    def list_hash(self) -> str:
        """The SHA-256 of the names of images and masks, in order."""
        return hash_of_rows((name, printable(mask.name)) for name, mask in zip(self.names, self.masks, strict=True))

    def load(self, i: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return image (H, W, 3) RGB and mask (H, W) of classes, 255 for no class; or raise a `UserError`."""
        image, mask = self.load_image(i), self.load_mask(i)
        if image.shape[:2] != mask.shape:
            raise UserError(
                f"{printable(self.masks[i])} has {mask.shape[1]} x {mask.shape[0]} pixels, its image "
                f"{image.shape[1]} x {image.shape[0]}",
                "a mask must have the size of its image (after EXIF orientation): create it again, or remove the pair",
            )
        return image, mask

    def load_image(self, i: int) -> NDArray[np.uint8]:
        return read_image(self.images[i])

    def load_mask(self, i: int) -> NDArray[np.uint8]:
        colors, path = self.decode.colors, self.masks[i]
        raw = _from_colors(path, colors) if colors else read_numbers(path)
        if not self.decode.values:
            return raw
        mask = np.array(self.decode.values, np.int16)[raw]
        if (mask < 0).any():
            raise UserError(
                f"{printable(path)} has the value {int(raw[mask < 0][0])}, but there are {len(self.classes)} classes",
                "list all classes, or write 255 for pixels that belong to no class",
            )
        return mask.astype(np.uint8)


def in_order_of(scenes: Scenes, classes: tuple[str, ...]) -> Scenes:
    """Return the scenes with their classes renumbered to match those of a model, by name."""
    if scenes.classes == classes:
        return scenes
    unknown = [name for name in scenes.classes if name not in set(classes)]
    if unknown:
        raise UserError(
            f"the data has a class {unknown[0]!r} that the model does not know{nearest(unknown[0], classes)}",
            "evaluate on data with the model's classes",
        )
    places = [classes.index(name) for name in scenes.classes]
    values = scenes.decode.values or (*range(len(places)), *[IGNORE] * (256 - len(places)))
    renumbered = tuple(places[k] if 0 <= k < len(places) else k for k in values)
    return replace(scenes, classes=classes, palette=(), decode=replace(scenes.decode, values=renumbered))


@dataclass(frozen=True, eq=False)
class SceneSplits(DataSplits[Scenes]):
    """The splits of images with masks.

    `pixels` has the number of training pixels per class, once they are counted. `gaps` are classes that are in no mask
    although a larger number is, if there is no table of classes.
    """

    pixels: tuple[int, ...] = ()
    gaps: tuple[str, ...] = ()

    @property
    def published(self) -> bool:
        """Return whether the splits are those of a benchmark."""
        return not self.reader.startswith(OWN)


def read_numbers(path: Path) -> NDArray[np.uint8]:
    """Return the number in each pixel of a mask file (H, W); the colors of a palette are ignored."""
    values, mode = read_stored(path)
    if values.ndim != 2 or values.dtype.kind not in "bui":
        raise UserError(
            f"{printable(path)} is a color image ({mode}) instead of a mask of class numbers",
            "for masks in colors, write classes.csv beside the folders: name,red,green,blue",
        )
    if values.min(initial=0) < 0 or values.max(initial=0) > 255:
        odd = values.min() if values.min() < 0 else values.max()
        raise UserError(
            f"{printable(path)} has the value {odd}, but class numbers are 0 to {IGNORE - 2}",
            "number the classes from 0",
        )
    return values.astype(np.uint8)


def _from_colors(path: Path, colors: Sequence[Color]) -> NDArray[np.uint8]:
    """Return the class of each pixel of a mask in colors. Masks of numbers are refused: most would have no class."""
    mode, pixels = stored_mode(path), read_image(path)
    if mode in ("L", "LA", "I", "I;16"):
        known = {red for red, green, blue in colors if red == green == blue}
        if numbers := [v for v in np.unique(pixels).tolist() if 0 < v < len(colors) and v not in known]:
            raise UserError(
                f"{printable(path)} has the number {numbers[0]}, which is not a color in the table of classes",
                "for masks of class numbers, write only names into classes.csv, without colors",
            )
    return by_color(pixels, colors)


def by_color(image: NDArray[np.uint8], colors: Sequence[Color]) -> NDArray[np.uint8]:
    """Return the class of each pixel of an image whose colors are classes; other colors are 255.

    >>> by_color(np.array([[[9, 9, 9], [0, 0, 1], [5, 5, 5]]], np.uint8), [(0, 0, 1), (9, 9, 9)]).tolist()
    [[1, 0, 255]]
    """
    packed = image.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
    known = np.array([red * 65536 + green * 256 + blue for red, green, blue in colors], np.uint32)
    order = np.argsort(known)
    place = order[np.searchsorted(known[order], packed).clip(max=len(known) - 1)]
    return np.where(known[place] == packed, place, IGNORE).astype(np.uint8)


def palette(num_classes: int) -> tuple[Color, ...]:
    """Return a color for every class; consecutive classes are far apart in hue, and the first is blue."""

    def color(k: int) -> Color:
        hue, light = (0.6 + 0.61803398875 * k) % 1.0, (0.45, 0.6, 0.35)[k % 3]
        red, green, blue = colorsys.hls_to_rgb(hue, light, 0.65)
        return round(255 * red), round(255 * green), round(255 * blue)

    return tuple(color(k) for k in range(num_classes))


def pixel_counts(scenes: Scenes, progress: Progress = no_progress) -> NDArray[np.int64]:
    """Return the number of pixels per class in all masks, (C,). Each process counts its share, and all get the sum."""

    def count(i: int) -> NDArray[np.int64]:
        return np.bincount(scenes.load_mask(i).ravel(), minlength=256)[: len(scenes.classes)]

    mine = distributed.own_share(len(scenes))
    counts = np.zeros(len(scenes.classes), np.int64)
    for done, own in enumerate(prefetch(count, mine, ahead=8, threads=4), 1):
        counts += own
        progress(done, len(mine))
    return distributed.sum_counts(torch.from_numpy(counts)).numpy()
