"""What every reader returns: images or their paths, labels and class names, in training, validation and test splits."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from gpaco.data.images import Pixels, read_image, size_of
from gpaco.data.members import File
from gpaco.errors import UserError
from gpaco.system.prefetch import prefetch
from gpaco.system.progress import Progress, no_progress
from gpaco.system.words import printable, some

Labels = npt.NDArray[np.int64]

_AHEAD = 64
_THREADS = 4

# Common names for splits, in folder names, file names and columns.
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
# Common names for the folders of images and of their masks.
IMAGE_WORDS = ("images", "image", "imgs", "img", "JPEGImages")
MASK_WORDS = ("masks", "mask", "labels", "annotations", "annot", "SegmentationClass")


class NamesBelow(Sequence[str]):
    """The printable names of files below a folder, made when asked for: stored, those of a million take 100 MB."""

    def __init__(self, folder: str, paths: Sequence[str]) -> None:
        self.folder, self.paths = folder, paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return NamesBelow(self.folder, self.paths[i])
        return printable(self.paths[i].removeprefix(self.folder))


@dataclass(frozen=True, eq=False)
class Samples:
    """Labeled images, either all in memory or as files that `load` decodes: exactly one of `images` and `paths`.

    >>> samples = Samples(np.array([0, 1, 1]), ("cat", "dog"), images=np.zeros((3, 8, 8, 3), np.uint8))
    >>> samples.counts.tolist(), samples.subset([2]).names, samples.load(0).shape
    ([1, 2], ('2',), (8, 8, 3))
    """

    labels: Labels  # (N,), each an index into `classes`
    classes: tuple[str, ...]
    images: Pixels | None = None  # (N, H, W, 3) RGB
    paths: tuple[str | File, ...] | None = None  # millions of str take a third of the memory of Path
    names: Sequence[str] = ()  # a printable name for each sample; by default its path or number

    def __post_init__(self) -> None:
        labels = np.asarray(self.labels, dtype=np.int64)
        number = len(np.asarray(self.images) if self.paths is None else self.paths)
        if labels.shape != (number,):
            raise ValueError(f"{number} images need labels of shape ({number},), got {labels.shape}")
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(self.classes):
            raise ValueError(f"labels must be 0 to {len(self.classes) - 1}, got {labels.min()} to {labels.max()}")
        object.__setattr__(self, "labels", labels)
        if not self.names:
            names = map(str, range(len(labels)) if self.paths is None else self.paths)
            object.__setattr__(self, "names", tuple(map(printable, names)))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def counts(self) -> Labels:
        """Return the number of samples of each class, (C,)."""
        return np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)

    def subset(self, indices: Sequence[int] | npt.NDArray[np.integer]) -> "Samples":
        """Return the samples at `indices`, in that order, with their names."""
        rows = np.asarray(indices, dtype=np.int64)
        names = self.names
        return replace(
            self,
            labels=self.labels[rows],
            images=None if self.images is None else self.images[rows],
            paths=None if self.paths is None else _taken(self.paths, rows),
            names=NamesBelow(names.folder, _taken(names.paths, rows))
            if isinstance(names, NamesBelow)
            else _taken(names, rows),
        )

    @cached_property
    def list_hash(self) -> str:
        """The SHA-256 of the names and classes in order, without pixels."""
        return hash_of_rows((name, self.classes[k]) for name, k in zip(self.names, self.labels.tolist(), strict=True))

    def load(self, i: int, least: int = 0) -> npt.NDArray[np.uint8]:
        """Return image `i` as (H, W, 3) uint8 RGB, or raise a `UserError` that names the file.

        A large photo is reduced if `least` pixels of its shorter side are enough; see `read_image`.
        """
        if self.paths is not None:
            return read_image(self.paths[i], least)
        return np.asarray(self.images)[i]  # type: ignore[no-any-return]


class BadImage(NamedTuple):
    """An image that was left out, and why."""

    split: str
    name: str
    reason: str


class Part(Protocol):
    """One split of a data set: `Samples`, or the scenes of segmentation."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...


T = TypeVar("T")
PartType = TypeVar("PartType", bound=Part)


@dataclass(frozen=True, eq=False)
class DataSplits(Generic[PartType]):
    """The splits of a data set, all with the same classes; its reader, and notes on how it was read.

    `held` names the splits that were drawn from training images instead of given.
    """

    train: PartType
    val: PartType | None
    test: PartType | None
    reader: str
    notes: tuple[str, ...] = ()
    bad: tuple[BadImage, ...] = ()
    held: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if any(part.classes != self.train.classes for _, part in self.parts()):
            raise ValueError("all splits of a data set must have the same classes")

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    def parts(self) -> list[tuple[str, PartType]]:
        """Return the existing splits with their names."""
        named = (("train", self.train), ("val", self.val), ("test", self.test))
        return [(name, part) for name, part in named if part is not None]

    def reported(self, evaluate_on: str) -> tuple[str, PartType | None]:
        """Return the split for the final metrics, and its name. It is not used to select epochs or to tune priors."""
        return ("val", self.val) if evaluate_on == "val" else ("test", self.test)

    def selecting(self, evaluate_on: str) -> PartType | None:
        """Return the validation split, which selects epochs and priors, unless it is the split to report on."""
        return None if evaluate_on == "val" else self.val

    def check_reported(self, evaluate_on: str) -> None:
        """Raise an error if the requested split does not exist."""
        names = [name for name, _ in self.parts()]
        if evaluate_on == "auto" or evaluate_on in names:
            return
        other = "test" if evaluate_on == "val" else "val"
        hold_out = ", or hold out some images: --validation 0.1" if evaluate_on == "val" else ""
        raise UserError(
            f"there is no {evaluate_on} split to report on, only {' and '.join(names)}",
            f"add it to the data, or report on another split: --set data.evaluate_on={other}{hold_out}",
        )

    def noting(self, *notes: str) -> Self:
        return replace(self, notes=(*self.notes, *notes))


AnySplits = TypeVar("AnySplits", bound=DataSplits[Any])


@dataclass(frozen=True, eq=False)
class Splits(DataSplits[Samples]):
    """The splits of labeled images."""


def _taken(values: Sequence[T], rows: Iterable[int]) -> tuple[T, ...]:
    return tuple(values[i] for i in rows)


def hash_of_rows(rows: Iterable[tuple[str, str]]) -> str:
    """Return the SHA-256 of rows of text, in order."""
    state = hashlib.sha256()
    for one, other in rows:  # the text of `json.dumps`, six times as fast
        state.update(f"[{quoted(one)}, {quoted(other)}]\n".encode())
    return state.hexdigest()


def with_training_images(splits: Splits, allow_empty_classes: bool) -> Splits:
    """Return the same splits, or raise a `UserError` that names the classes without a training image."""
    empty = np.flatnonzero(splits.train.counts == 0)
    if not len(empty):
        return splits
    if len(splits.train) == 0:
        raise UserError(
            f"no training images; read as {splits.reader}",
            "check that the path is the right folder or file, and that some images belong to the split train "
            "(shards: train-000.tar)",
        )
    if allow_empty_classes:
        return splits
    names = [splits.classes[c] for c in empty]
    others = [part.counts for name, part in splits.parts() if name != "train"]
    elsewhere = [splits.classes[c] for c in empty if any(counts[c] for counts in others)]
    only = f" (only in validation or test: {some(elsewhere)})" if elsewhere else ""
    hint = ", or number the labels from 0" if names == [splits.classes[0]] == ["0"] else ""
    raise UserError(
        f"{'class' if len(names) == 1 else f'{len(names)} classes'} without a training image: {some(names)}{only}",
        f"add images or remove the class{hint}; to keep it without images: --set data.allow_empty_classes=true",
    )


def in_memory(splits: Splits, limit: float, *, largest: int = 64, progress: Progress = no_progress) -> Splits:
    """Return the splits with all images decoded, if they all have the same size of at most `largest` pixels a side.

    Small images take longer to read and decode than to augment. Other splits are returned unchanged, and so are those
    that would take more than `limit` megabytes, which the headers tell before anything is decoded.
    """
    parts = dict(splits.parts())
    if limit <= 0 or any(part.paths is None or len(part) == 0 for part in parts.values()):
        return splits
    shape, total = splits.train.load(0).shape, sum(map(len, parts.values()))
    if max(shape) > largest or total * math.prod(shape) > limit * 1e6:
        return splits
    paths = [path for part in parts.values() for path in part.paths or ()]
    if any(size != shape[1::-1] for size in prefetch(size_of, paths, ahead=_AHEAD, threads=_THREADS)):
        return splits
    decoded, done = {}, 0
    for name, part in parts.items():
        images = np.empty((len(part), *shape), np.uint8)
        for i, image in enumerate(prefetch(part.load, range(len(part)), ahead=_AHEAD, threads=_THREADS)):
            images[i] = image
            done += 1
            progress(done, total)
        decoded[name] = replace(part, images=images, paths=None)
    note = f"decoded into memory: all images are {shape[1]} x {shape[0]} pixels"
    return replace(splits, train=decoded["train"], val=decoded.get("val"), test=decoded.get("test")).noting(note)
