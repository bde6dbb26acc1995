"""Published sets of corrupted images: the folders of ImageNet-C, the arrays of CIFAR-10-C and -100-C."""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpaco.data.class_maps import class_map
from gpaco.data.corruption.corruptions import CORRUPTIONS, KINDS, SEVERITIES
from gpaco.data.images import SUFFIXES, Pixels, read_image
from gpaco.data.samples import Labels
from gpaco.data.walk import entries
from gpaco.errors import UserError, nearest
from gpaco.system.progress import Progress, no_progress
from gpaco.system.words import one_line, printable

Condition = tuple[str, int]  # a corruption and its severity
CLEAN: Condition = ("clean", 0)

_LEVELS = tuple(map(str, SEVERITIES))
# The published archives have four more corruptions that no mean includes. They are not read.
_UNUSED = ("extra", "speckle_noise", "gaussian_blur", "spatter", "saturate")


@dataclass(frozen=True, eq=False)
class Tree:
    """ImageNet-C: `corruption/severity/class/image`, the same images below every severity."""

    labels: Labels
    classes: tuple[str, ...]  # the class folders, sorted
    names: tuple[str, ...]  # `class/image`
    homes: dict[Condition, Path]  # the folder of each condition that exists, in the usual order
    reader = "imagenet-c"

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return tuple(self.homes)

    def load(self, condition: Condition, i: int) -> Pixels:
        return read_image(self.homes[condition] / self.names[i])


@dataclass(frozen=True, eq=False)
class Arrays:
    """CIFAR-10-C or -100-C: `corruption.npy` of (5 N, 32, 32, 3), mildest first, and `labels.npy`."""

    labels: Labels
    classes: tuple[str, ...]
    files: dict[str, Path]
    reader: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(str, range(len(self.labels))))

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return tuple((name, severity) for name in self.files for severity in SEVERITIES)

    def load(self, condition: Condition, i: int) -> Pixels:
        name, severity = condition
        return np.array(_mapped(self.files[name])[(severity - 1) * len(self.labels) + i])


def read_shifted(path: Path, progress: Progress = no_progress) -> Tree | Arrays | None:
    """Return the corrupted set in a folder, or None."""
    if not path.is_dir():
        return None
    if (path / "labels.npy").is_file():
        return _read_arrays(path)
    homes = _homes(path)
    return None if not homes else _read_tree(homes, progress)


def _homes(path: Path) -> dict[str, Path]:
    """Return the corruption folders, here or one level down (in noise, blur, ..., named as the archives).

    A folder without severities is not one of them: a class may be called snow.
    """
    found: dict[str, Path] = {}
    for folder in [path, *(path / kind for kind in KINDS if (path / kind).is_dir())]:
        for name in sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()):
            if name in CORRUPTIONS and any((folder / name / level).is_dir() for level in _LEVELS):
                if name in found:
                    raise UserError(f"{name} is both in {found[name].parent} and in {folder}", "keep one of the two")
                found[name] = folder / name
    if not found:
        return {}
    for name in sorted(entry.name for entry in entries(path) if entry.is_dir()):
        if name not in (*found, *KINDS, *_UNUSED):
            raise UserError(
                f"{path} has corruptions, and a folder {name!r} that is not one{nearest(name, CORRUPTIONS)}",
                "fix its name, or move it elsewhere",
            )
    return {name: found[name] for name in CORRUPTIONS if name in found}


def _read_tree(folders: dict[str, Path], progress: Progress) -> Tree:
    homes = {(name, s): folder / str(s) for name, folder in folders.items() for s in SEVERITIES}
    homes = {condition: home for condition, home in homes.items() if home.is_dir()}
    for folder in folders.values():
        odd = sorted(entry.name for entry in entries(folder) if entry.is_dir() and entry.name not in _LEVELS)
        if odd:
            raise UserError(f"{folder} has a folder {odd[0]!r}, which is not a severity", "severities are named 1 to 5")
    names: list[str] = []
    first: Path | None = None
    for number, home in enumerate(homes.values(), 1):
        own = _listing(home)
        if first is None:
            first, names = home, own
        elif own != names:
            raise _differs(home, set(own), first, set(names))
        progress(number, len(homes))
    if not names:
        raise UserError(f"no image in {first}", "it should have a folder for each class, with images")
    folder_of = [name.split("/", 1)[0] for name in names]
    classes = tuple(sorted(set(folder_of)))
    place = {name: c for c, name in enumerate(classes)}
    labels = np.array([place[name] for name in folder_of], np.int64)
    return Tree(labels, tuple(map(printable, classes)), tuple(names), homes)


def _listing(home: Path) -> list[str]:
    """Return `class/image` for all images below a severity, sorted."""
    found = []
    for folder in entries(home):
        if folder.is_dir():
            names = (entry.name for entry in entries(folder.path) if not entry.is_dir())
            found += [f"{folder.name}/{name}" for name in names if os.path.splitext(name)[1].lower() in SUFFIXES]
    return sorted(found)


def _differs(home: Path, own: set[str], first: Path, names: set[str]) -> UserError:
    missing, more = sorted(names - own), sorted(own - names)
    what = f"lacks {missing[0]!r}, which {first} has" if missing else f"has {more[0]!r}, which {first} lacks"
    count = len(missing) + len(more) - 1
    return UserError(
        f"{home} {what}{f', and {count} more images differ' if count else ''}",
        "every severity needs the same images: unpack the archive again",
    )


def _read_arrays(path: Path) -> Arrays:
    labels = _array(path / "labels.npy")
    files = {name: path / f"{name}.npy" for name in CORRUPTIONS if (path / f"{name}.npy").is_file()}
    odd = sorted(p.stem for p in path.glob("*.npy") if p.stem not in (*CORRUPTIONS, *_UNUSED, "labels"))
    if odd:
        hint = nearest(odd[0], CORRUPTIONS)
        raise UserError(f"{path} has {odd[0]}.npy, which is not a corruption{hint}", "fix its name, or move it away")
    if not files:
        raise UserError(f"{path} has labels but no corrupted images", "unpack CIFAR-10-C or CIFAR-100-C there")
    total = len(_mapped(next(iter(files.values()))))
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) not in (total, total // 5) or total % 5:
        raise UserError(
            f"{path}: labels of shape {labels.shape} do not fit {total} images of five severities",
            "labels.npy needs a number for each image, for all severities in turn",
        )
    labels = labels.astype(np.int64)
    if len(labels) == total and not (labels.reshape(5, -1) == labels[: total // 5]).all():
        raise UserError(f"{path}/labels.npy differs between severities", "unpack the archive again")
    labels = labels[: total // 5]
    for file in files.values():
        images = _mapped(file)
        if images.shape != (total, *images.shape[1:3], 3) or images.dtype != np.uint8:
            raise UserError(
                f"{file} is {images.dtype} of shape {images.shape}, not {total} RGB images of bytes", "unpack it again"
            )
    set_name = "cifar10" if labels.max() < 10 else "cifar100"
    classes = class_map(set_name)
    if not 0 <= labels.min() <= labels.max() < len(classes):
        raise UserError(f"{path}/labels.npy has labels {labels.min()} to {labels.max()}", "CIFAR has 10 or 100 classes")
    return Arrays(labels, classes, files, "cifar-10-c" if set_name == "cifar10" else "cifar-100-c")


def _array(path: Path) -> NDArray[Any]:
    """Return the array in a file, memory-mapped and never unpickled."""
    try:
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"cannot read {path}: {one_line(error)}", "unpack it again") from error


_mapped = lru_cache(maxsize=20)(_array)
