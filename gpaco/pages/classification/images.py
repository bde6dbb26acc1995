"""Pictures for the page: missed images of the most confused rare classes beside training images, and odd labels."""

from collections.abc import Collection, Sequence

import numpy as np

from gpaco.data.samples import Samples
from gpaco.errors import Problem
from gpaco.metrics.arrays import Ints
from gpaco.pages.classification.evidence import Evidence, Facts, blocks, probabilities
from gpaco.pages.render import thumbnail

CLASSES, MISSED, BESIDE = 6, 4, 3
LISTED, SHOWN = 100, 8  # labels worth a second look
SIDE, QUALITY = 72, 72  # pixels of the longer side, at most; of JPEG
_SURE = 5  # test images and half of them right: with less, a miss says more about the model than about the label


def confused_classes(one: Evidence, odd: Collection[int]) -> list[Facts]:
    """The rarer half of the classes, worst first: what was missed, most surely wrong first, and what it was taken for.

    `odd` are the images whose label is worth a second look.
    """
    right = one.predictions == one.labels
    test = np.bincount(one.labels, minlength=len(one.counts))
    found = np.bincount(one.labels[right], minlength=len(one.counts))
    rare = np.flatnonzero((one.counts <= np.median(one.counts)) & (found < test))
    order = sorted(rare.tolist(), key=lambda c: (found[c] / test[c], one.counts[c], c))
    rows = []
    for c in order[:CLASSES]:
        missed = np.flatnonzero((one.labels == c) & ~right)
        p = one.confidence[missed]
        worst = np.argsort(-p, kind="stable")[:MISSED]
        taken, times = np.unique(one.predictions[missed], return_counts=True)
        rows.append(
            {
                "class": c,
                "test": int(test[c]),
                "missed": len(missed),
                "taken_for": int(taken[times.argmax()]),
                "images": [
                    {
                        "image": int(missed[k]),
                        "name": one.images[missed[k]],
                        "taken_for": int(one.predictions[missed[k]]),
                        "confidence": float(p[k]),
                        "check": int(missed[k]) in odd,
                    }
                    for k in worst
                ],
            }
        )
    return rows


def suspects(one: Evidence) -> list[int]:
    """Test images whose label is worth a second look, the most striking first.

    With classes equally likely, the model must be nine tenths as sure of another class as it is, on average, of that
    class's own images, and give the label less than a tenth of what that label's own images get on average. Both
    classes need five test images and half of them right: of a class that is not learned nothing can be said.
    """
    if not len(one.labels):
        return []
    size = len(one.counts)
    test = np.bincount(one.labels, minlength=size)
    winners = one.uniform.argmax(1)
    sure, own = np.empty(len(winners)), np.empty(len(winners))
    for rows in blocks(len(winners)):
        p = probabilities(one.uniform[rows])
        sure[rows] = p.max(1)
        own[rows] = np.take_along_axis(p, one.labels[rows, None], 1)[:, 0]
    typical = np.bincount(one.labels, own, size) / np.maximum(test, 1)
    right = np.bincount(one.labels[winners == one.labels], minlength=size)
    known = (test >= _SURE) & (2 * right >= test)
    odd = (winners != one.labels) & (sure >= 0.9 * typical[winners]) & (own < typical[one.labels] / 10)
    odd &= known[winners] & known[one.labels]
    places = np.flatnonzero(odd)
    return [int(k) for k in places[np.argsort(-(sure - own)[places], kind="stable")]]


class Album:
    """Small pictures as data URIs, each once, until there is no room left."""

    def __init__(self, room: int = 1_500_000) -> None:
        self.room = room
        self.pictures: list[str] = []
        self._places: dict[tuple[int, int], int | None] = {}

    def add(self, samples: Samples, i: int) -> int | None:
        """The number of a picture; None if it cannot be read or there is no more room."""
        key = (id(samples), i)
        if key not in self._places:
            self._places[key] = self._new(samples, i)
        return self._places[key]

    def _new(self, samples: Samples, i: int) -> int | None:
        try:
            uri = thumbnail(samples.load(i), SIDE, QUALITY)
        except Problem:
            return None
        if len(uri) > self.room:
            return None
        self.room -= len(uri)
        self.pictures.append(uri)
        return len(self.pictures) - 1


def examples(train: Samples, c: int, number: int = BESIDE) -> Ints:
    """Some training images of a class, spread over all of them."""
    mine = np.flatnonzero(train.labels == c)
    chosen: Ints = mine[np.linspace(0, len(mine) - 1, min(number, len(mine))).astype(int)]
    return chosen


def find(samples: Samples, names: Sequence[str]) -> dict[str, int] | None:
    """Where each image is in the data, by name; None if some are not there any more."""
    places = {name: k for k, name in enumerate(samples.names)}
    return places if all(name in places for name in names) else None
