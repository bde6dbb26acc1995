"""Matches classes of other data to those of a model by name, with notes on what is left out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpaco.data.class_maps import translate_classes
from gpaco.data.samples import Samples
from gpaco.errors import UserError, nearest
from gpaco.system.words import plural, some


@dataclass(frozen=True, eq=False)
class Match:
    """Labels as class indices of a model.

    Args:
        labels: (N,) indices of the model's classes; -1 for images of an unknown class.
        there: (C,) which of the model's classes are in the data.
        unknown: classes of the data that the model does not know, by their names in the data.
        absent: classes of the model that are not in the data.
    """

    labels: NDArray[np.int64]
    there: NDArray[np.bool_]
    unknown: tuple[str, ...]
    absent: tuple[str, ...]

    @property
    def known(self) -> NDArray[np.int64]:
        """The indices of images whose class the model knows."""
        return np.flatnonzero(self.labels >= 0)

    @property
    def dropped(self) -> int:
        """The number of images of unknown classes."""
        return int((self.labels < 0).sum())

    def notes(self, classes: Sequence[str]) -> list[str]:
        """Return lines about what was left out."""
        notes = []
        if self.unknown:
            typo = next((hint for name in self.unknown if (hint := nearest(name, classes))), "")
            what = f"{self.dropped:,} of these {plural(len(self.labels), 'image')}"
            which = f"{plural(len(self.unknown), 'class')} that the model does not know"
            notes.append(f"left out: {what}, of {which}: {some(self.unknown)}{typo}")
        if self.absent:
            classes_of = f"{plural(len(self.absent), 'class')} of the model"
            notes.append(f"the data has no images of {classes_of}: {some(self.absent)}")
        return notes

    def facts(self, restricted: bool) -> dict[str, Any]:
        """Return what was matched and what was left out, ready for JSON."""
        return {
            "classes": int(self.there.sum()),
            "unknown": list(self.unknown),
            "dropped_images": self.dropped,
            "absent": list(self.absent),
            "restricted": restricted,
        }


def match(labels: NDArray[np.int64], names: Sequence[str], classes: Sequence[str]) -> Match:
    """Map labels from indices of `names` to indices of a model's `classes`; raise an error if no name matches."""
    place = {name: c for c, name in enumerate(classes)}
    places = np.array([place.get(word, -1) for word in translate_classes(names, classes)], np.int64)
    counts = np.bincount(labels, minlength=len(names))
    unknown = tuple(name for name, c, n in zip(names, places, counts, strict=True) if c < 0 and n)
    there = np.zeros(len(classes), bool)
    there[places[(places >= 0) & (counts > 0)]] = True
    if not there.any():
        word = unknown[0] if unknown else ""
        numbered = ", or convert the model again with --classes FILE" if all(map(str.isdigit, classes)) else ""
        raise UserError(
            f"none of the classes of the data is in the model: {some(unknown)}{nearest(word, classes)}",
            f"rename the classes of the data{numbered}; the model has {some(list(classes))}",
        )
    absent = tuple(name for name, seen in zip(classes, there, strict=True) if not seen)
    return Match(places[labels], there, unknown, absent)


def matched(samples: Samples, classes: tuple[str, ...]) -> tuple[Samples, Match]:
    """Return the samples of known classes, with the model's class indices as labels, and the match."""
    found = match(samples.labels, samples.classes, classes)
    chosen = samples if not found.dropped else samples.subset(found.known)
    return replace(chosen, labels=found.labels[found.known], classes=classes), found


def restricted(logits: NDArray[Any], there: NDArray[np.bool_]) -> NDArray[Any]:
    """Return logits (N, C) that predict only the classes of the data."""
    return np.where(there, logits, np.array(-np.inf, logits.dtype))
