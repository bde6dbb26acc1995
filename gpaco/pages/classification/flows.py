"""Where errors go: between groups, between classes, and toward more frequent classes."""

import numpy as np

from gpaco.metrics.groups import GROUPS
from gpaco.metrics.intervals import wilson
from gpaco.pages.classification.evidence import Evidence
from gpaco.pages.render import Facts

PAIRS = 30
MATRIX = 40  # classes at most for showing the whole matrix
_NEIGHBORS = 5


def flows(one: Evidence) -> list[Facts]:
    """Return the test images of each group, how many are right, and the predicted groups of the others."""
    true, taken = one.groups[one.labels], one.groups[one.predictions]
    right = one.predictions == one.labels
    return [
        {
            "from": name,
            "images": int((true == name).sum()),
            "right": int(right[true == name].sum()),
            "to": {other: int(((true == name) & ~right & (taken == other)).sum()) for other in GROUPS},
        }
        for name in GROUPS
    ]


def confusion(one: Evidence) -> list[list[int]] | None:
    """Return how many images of each class (row) were taken for each class; None if the page has no room for it."""
    size = len(one.counts)
    if size > MATRIX:
        return None
    pairs = np.bincount(size * one.labels + one.predictions, minlength=size**2)
    found: list[list[int]] = pairs.reshape(size, size).tolist()
    return found


def head_pull(one: Evidence) -> dict[str, Facts]:
    """Return the share of each group's errors that go to a more frequent class, and the share expected by chance.

    By chance, an error goes to every other class equally often. For the rarest class, all others are more frequent, so
    a high share means nothing by itself.
    """
    counts = one.counts
    wrong = one.predictions != one.labels
    labels, predictions = one.labels[wrong], one.predictions[wrong]
    up = counts[predictions] > counts[labels]
    more_frequent = len(counts) - np.searchsorted(np.sort(counts), counts, side="right")
    chance = more_frequent[labels] / max(len(counts) - 1, 1)
    result = {}
    for name in GROUPS:
        mine = one.groups[labels] == name
        number = int(mine.sum())
        result[name] = {
            "errors": number,
            "up": int(up[mine].sum()),
            "share": float(up[mine].mean()) if number else None,
            "expected": float(chance[mine].mean()) if number else None,
        }
    return result


def confused_pairs(one: Evidence) -> dict[tuple[int, int], int]:
    """Return how often each class was mistaken for another: {(class, predicted class): images}."""
    wrong = one.predictions != one.labels
    places, times = np.unique(one.labels[wrong] * len(one.counts) + one.predictions[wrong], return_counts=True)
    return {divmod(int(place), len(one.counts)): int(number) for place, number in zip(places, times, strict=True)}


def strongest_pairs(one: Evidence, pairs: dict[tuple[int, int], int]) -> list[Facts]:
    """Return the pairs in which a class is most often mistaken for a more frequent one.

    They are sorted by the lower end of the Wilson interval, so that 1 of 1 image does not rank above 10 of 20.
    `asymmetry` is how much more often a pair is confused in this direction than in the other, from -1 to 1.
    """
    test = np.bincount(one.labels, minlength=len(one.counts))
    rows: list[Facts] = []
    for (true, taken), number in pairs.items():
        if one.counts[taken] > one.counts[true]:
            low, _ = wilson(number, int(test[true])) or (0.0, 0.0)
            share, back = number / int(test[true]), pairs.get((taken, true), 0)
            share_back = back / int(test[taken]) if back else 0.0
            rows.append(
                {
                    "class": true,
                    "taken_for": taken,
                    "images": number,
                    "of": int(test[true]),
                    "share": share,
                    "low": low,
                    "back": back,
                    "back_of": int(test[taken]),
                    "asymmetry": float((share - share_back) / (share + share_back)),
                }
            )
    return sorted(rows, key=lambda row: (-row["low"], row["class"], row["taken_for"]))[:PAIRS]


def neighbors(pairs: dict[tuple[int, int], int], num_classes: int) -> list[Facts]:
    """Return for each class the five it is most often mistaken for, and the five most often mistaken for it."""
    rows: list[Facts] = [{"to": [], "by": []} for _ in range(num_classes)]
    for (true, taken), number in sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0])):
        rows[true]["to"].append([taken, number])
        rows[taken]["by"].append([true, number])
    return [{key: found[:_NEIGHBORS] for key, found in row.items()} for row in rows]
