"""Pictures with a mask each: what every reader of segmentation data returns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gpaco.data.images import read_image, read_stored
from gpaco.data.samples import BadImage, hash_of_rows
from gpaco.errors import UserError, nearest
from gpaco.metrics.segmentation import IGNORE
from gpaco.system import distributed
from gpaco.system.words import printable

Color = tuple[int, int, int]
OWN = "folders of pictures and masks"  # how the reader of anyone's data is called


@dataclass(frozen=True)
class Decode:
    """How a mask file becomes classes: by the number in each pixel, or by its color.

    Args:
        values: the class of each number that a pixel may have, 255 for none; numbers beyond it are errors.
        colors: the color of each number; other colors are 255. Without `values` a color's number is its class.
    """

    values: tuple[int, ...] = ()
    colors: tuple[Color, ...] = ()


def numbered(num_classes: int, *, first: int = 0, ignore: Sequence[int] = (255,)) -> Decode:
    """Files in which class k has the number `first` + k; smaller numbers and those of `ignore` are no class.

    >>> numbered(3, first=1).values[:5]
    (255, 0, 1, 2, -1)
    """
    table = [-1] * 256
    table[:first] = [IGNORE] * first
    for k in range(num_classes):
        table[first + k] = k
    for value in ignore:
        table[value] = IGNORE
    return Decode(values=tuple(table))


@dataclass(frozen=True, eq=False)
class Scenes:
    """Pictures and masks as files that `load` decodes; `palette` has a color for each class, for pictures."""

    images: tuple[Path, ...]
    masks: tuple[Path, ...]
    classes: tuple[str, ...]
    decode: Decode
    palette: tuple[Color, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.images) != len(self.masks):
            raise ValueError(f"{len(self.images)} pictures need as many masks, got {len(self.masks)}")
        if len(self.classes) >= IGNORE:
            raise ValueError(f"at most {IGNORE - 1} classes, got {len(self.classes)}")
        if not self.palette:
            object.__setattr__(self, "palette", palette(len(self.classes)))
        if not self.names:
            object.__setattr__(self, "names", tuple(printable(path) for path in self.images))

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, indices: Sequence[int] | NDArray[np.integer]) -> "Scenes":
        """The scenes at `indices`, in that order."""
        chosen = [int(i) for i in indices]
        return replace(
            self,
            images=tuple(self.images[i] for i in chosen),
            masks=tuple(self.masks[i] for i in chosen),
            names=tuple(self.names[i] for i in chosen),
        )

    def list_hash(self) -> str:
        """SHA-256 of the names of pictures and masks, in order: the same if and only if the list is the same."""
        return hash_of_rows((name, printable(mask.name)) for name, mask in zip(self.names, self.masks, strict=True))

    def load(self, i: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Picture (H, W, 3) RGB and mask (H, W) of classes, 255 for none; a `UserError` that names what is wrong."""
        image, mask = self.load_image(i), self.load_mask(i)
        if image.shape[:2] != mask.shape:
            raise UserError(
                f"{printable(self.masks[i])} has {mask.shape[1]} x {mask.shape[0]} pixels, its picture "
                f"{image.shape[1]} x {image.shape[0]}",
                "a mask has the size of its picture: make it again, or take the pair out",
            )
        return image, mask

    def load_image(self, i: int) -> NDArray[np.uint8]:
        return read_image(self.images[i])

    def load_mask(self, i: int) -> NDArray[np.uint8]:
        colors, path = self.decode.colors, self.masks[i]
        raw = _from_colors(path, colors) if colors else read_numbers(path)
        if not self.decode.values:
            return raw
        table = np.full(256, -1, np.int16)
        table[: len(self.decode.values)] = self.decode.values
        mask = table[raw]
        if (mask < 0).any():
            raise UserError(
                f"{printable(self.masks[i])} has the value {int(raw[mask < 0][0])}, but there are "
                f"{len(self.classes)} classes",
                "list all classes, or write 255 for pixels that belong to none",
            )
        return mask.astype(np.uint8)


def in_order_of(scenes: Scenes, classes: tuple[str, ...]) -> Scenes:
    """The scenes with their classes renumbered to those of a model, by name."""
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
class SceneSplits:
    """Training, validation and test scenes, all with the same classes; how they were read and what was decided.

    `pixels` are those of each class in training, once they were counted. `held` names the parts that were drawn from
    training pictures, not given.
    """

    train: Scenes
    val: Scenes | None
    test: Scenes | None
    reader: str
    notes: tuple[str, ...] = ()
    pixels: tuple[int, ...] = ()
    bad: tuple[BadImage, ...] = ()
    held: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    @property
    def published(self) -> bool:
        """Whether the parts are a benchmark's, not somebody's own."""
        return not self.reader.startswith(OWN)

    def parts(self) -> list[tuple[str, Scenes]]:
        """The parts there are, with their names."""
        named = (("train", self.train), ("val", self.val), ("test", self.test))
        return [(name, part) for name, part in named if part is not None]


def read_numbers(path: Path) -> NDArray[np.uint8]:
    """The number in each pixel of a mask file (H, W); a palette's colors are not looked at."""
    values, mode = read_stored(path)
    if values.ndim != 2 or values.dtype.kind not in "bui":
        raise UserError(
            f"{printable(path)} is a picture in colors ({mode}), expected is a mask of class numbers",
            "for masks in colors write classes.csv beside the folders: name,red,green,blue",
        )
    if values.min(initial=0) < 0 or values.max(initial=0) > 255:
        odd = values.min() if values.min() < 0 else values.max()
        raise UserError(
            f"{printable(path)} has the value {odd}; class numbers go to {IGNORE - 2}", "number the classes from 0"
        )
    return values.astype(np.uint8)


def _from_colors(path: Path, colors: Sequence[Color]) -> NDArray[np.uint8]:
    """The class of each pixel of a mask in colors. One with class numbers is refused: most would count as no class."""
    from PIL import Image

    pixels = read_image(path)
    with Image.open(path) as image:
        gray = image.mode in ("L", "LA", "I", "I;16")
    if gray:
        known = {red for red, green, blue in colors if red == green == blue}
        if numbers := [v for v in np.unique(pixels).tolist() if v < len(colors) and v not in known]:
            raise UserError(
                f"{printable(path)} has the number {numbers[0]}, which is no color of the table of classes",
                "for masks of class numbers write the names only, without colors, into classes.csv",
            )
    return by_color(pixels, colors)


def by_color(image: NDArray[np.uint8], colors: Sequence[Color]) -> NDArray[np.uint8]:
    """The class of each pixel of a picture whose colors are classes; other colors are 255.

    >>> by_color(np.array([[[9, 9, 9], [0, 0, 1], [5, 5, 5]]], np.uint8), [(0, 0, 1), (9, 9, 9)]).tolist()
    [[1, 0, 255]]
    """
    packed = image.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
    known = np.array([red * 65536 + green * 256 + blue for red, green, blue in colors], np.uint32)
    order = np.argsort(known)
    place = np.searchsorted(known[order], packed).clip(max=len(known) - 1)
    found = known[order][place] == packed
    return np.where(found, order[place], IGNORE).astype(np.uint8)


def palette(num_classes: int) -> tuple[Color, ...]:
    """A color for every class, neighbors in number far apart in hue."""
    import colorsys

    def color(k: int) -> Color:
        hue, light = (0.61803398875 * k) % 1.0, (0.45, 0.6, 0.35)[k % 3]
        red, green, blue = colorsys.hls_to_rgb(hue, light, 0.65)
        return round(255 * red), round(255 * green), round(255 * blue)

    return tuple(color(k) for k in range(num_classes))


def pixel_counts(scenes: Scenes, show: Callable[[int, int], None] | None = None) -> NDArray[np.int64]:
    """Pixels of each class in all masks, (C,). Each process counts its share, and all get the sum."""
    from concurrent.futures import ThreadPoolExecutor

    def count(i: int) -> NDArray[np.int64]:
        return np.bincount(scenes.load_mask(i).ravel(), minlength=256)[: len(scenes.classes)]

    mine = distributed.mine(len(scenes))
    counts = np.zeros(len(scenes.classes), np.int64)
    with ThreadPoolExecutor(4) as pool:
        for done, counted in enumerate(pool.map(count, mine), 1):
            counts += counted
            if show is not None:
                show(done, len(mine))
    return distributed.sum_counts(torch.from_numpy(counts)).numpy()
