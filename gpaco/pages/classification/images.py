"""Images for the page: missed images of the most confused rare classes beside training images, and suspect labels."""

from collections.abc import Collection, Sequence
from contextlib import suppress

import numpy as np

from gpaco.data.samples import Samples, Splits
from gpaco.errors import Problem
from gpaco.pages.classification.evidence import Evidence, blocks
from gpaco.pages.render import Facts, thumbnail
from gpaco.recipes.settings import Data
from gpaco.system.progress import Say
from gpaco.tasks.classification.logits import softmax
from gpaco.tasks.classification.splits import as_files, splits_of

CLASSES, MISSED, BESIDE = 6, 4, 3
LISTED, SHOWN = 100, 8  # suspect labels
ROOM = 300_000  # bytes of images for each run
SIDE, QUALITY = 72, 72  # pixels of the longer side at most; JPEG quality
_SURE = 5  # test images, half of them right: with fewer, a miss says more about the model than about the label


class Album:
    """Thumbnails as data URIs without duplicates, up to a size."""

    def __init__(self) -> None:
        self.room = ROOM  # bytes left
        self.thumbnails: list[str] = []
        self._places: dict[tuple[Samples, int], int | None] = {}

    def add(self, samples: Samples, i: int) -> int | None:
        """Return the number of an image's thumbnail; None if the image cannot be read or there is no room left."""
        key = (samples, i)
        if key not in self._places:
            self._places[key] = None
            with suppress(Problem):
                uri = thumbnail(samples.load(i, SIDE), SIDE, QUALITY)
                if len(uri) <= self.room:
                    self.room -= len(uri)
                    self._places[key] = len(self.thumbnails)
                    self.thumbnails.append(uri)
        return self._places[key]


def confused_classes(one: Evidence, odd: Collection[int]) -> list[Facts]:
    """Return the worst of the rarer half of the classes with their most confident errors.

    `odd` are the images with a suspect label.
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
    """Return the test images whose label may be wrong, the most striking first.

    Classes count as equally likely. The probability of another class must reach nine tenths of its mean over that
    class's own images, and the probability of the label must be below a tenth of its mean over the label's own images.
    Both classes need five test images, half of them right: a model cannot judge classes that it has not learned.
    """
    if not len(one.labels):
        return []
    size = len(one.counts)
    test = np.bincount(one.labels, minlength=size)
    winners = one.uniform.argmax(1)
    sure, own = np.empty(len(winners)), np.empty(len(winners))
    for rows in blocks(len(winners)):
        p = softmax(one.uniform[rows])
        sure[rows] = p.max(1)
        own[rows] = np.take_along_axis(p, one.labels[rows, None], 1)[:, 0]
    typical = np.bincount(one.labels, own, size) / np.maximum(test, 1)
    right = np.bincount(one.labels[winners == one.labels], minlength=size)
    known = (test >= _SURE) & (2 * right >= test)
    odd = (winners != one.labels) & (sure >= 0.9 * typical[winners]) & (own < typical[one.labels] / 10)
    odd &= known[winners] & known[one.labels]
    places = np.flatnonzero(odd)
    return [int(k) for k in places[np.argsort(-(sure - own)[places], kind="stable")]]


def read_data(found: Sequence[Evidence], splits: Splits | None, say: Say) -> list[Splits | str]:
    """Return the data of each run, or why it cannot be read. Runs on the same data share it."""
    known: dict[Data, Splits | str] = {}
    files = [as_files(one.run.recipe, one.run.folder) for one in found]
    for one, recipe in zip(found, files, strict=True):
        if splits is None and recipe.data not in known:
            say(f"reading {recipe.data.path} for its images (--no-images skips this)")
            try:  # the page skips unreadable images itself
                known[recipe.data] = splits_of(recipe, run=one.run.folder)
            except Problem as problem:
                known[recipe.data] = f"the data cannot be read: {problem.cause}"
                say(f"no images on the page: {known[recipe.data]}")
    return [splits or known[recipe.data] for recipe in files]


def missed_images(one: Evidence, album: Album, source: Splits | str) -> Facts:
    """Return confused classes and suspect labels with the numbers of their thumbnails, or why there are none."""
    odd = suspects(one)
    confused = confused_classes(one, set(odd))
    listed: list[Facts] = [
        {"image": k, "name": one.images[k], "class": int(one.labels[k]), "taken_for": int(one.uniform[k].argmax())}
        for k in odd[:LISTED]
    ]
    result = {"confused": confused, "suspects": listed, "suspects_found": len(odd), "no_images": ""}
    if isinstance(source, str):
        return result | {"no_images": source}
    tested = source.val if one.metrics["evaluated_on"] == "val" else source.test
    places = {} if tested is None else {name: k for k, name in enumerate(tested.names)}
    if tested is None or list(tested.classes) != one.classes or not places.keys() >= set(one.images):
        return result | {"no_images": "the data has changed since the run was evaluated"}
    for row in [*(row for entry in confused for row in entry["images"]), *listed[:SHOWN]]:
        row["thumbnail"] = album.add(tested, places[row["name"]])
    for entry in confused:
        for key, c in (("own", entry["class"]), ("other", entry["taken_for"])):
            mine = np.flatnonzero(source.train.labels == c)
            spread = np.linspace(0, len(mine) - 1, min(BESIDE, len(mine))).astype(int)
            numbers = [album.add(source.train, int(i)) for i in mine[spread]]
            entry[key] = [number for number in numbers if number is not None]
    return result
