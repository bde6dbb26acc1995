"""The summary: metrics with intervals, differences between runs on the same images, and what stands out in words."""

from collections.abc import Sequence

import numpy as np

from gpaco.metrics.arrays import Ints
from gpaco.metrics.groups import GROUPS
from gpaco.metrics.intervals import intervals, paired_intervals
from gpaco.pages.classification.evidence import Evidence
from gpaco.pages.render import Facts, percent
from gpaco.system.words import join_words, plural

FIGURES = {"top1": "all images", "macro": "all classes", "many": "many", "medium": "medium", "few": "few"}
_HOW_OFTEN = (
    (0.2, "far less often than"),
    (0.05, "less often than"),
    (-0.05, "about as often as"),
    (-np.inf, "more often than"),
)


def summary(one: Evidence) -> Facts:
    """Return metrics with their intervals, the worst tenth of the classes, and the classes never recognized."""
    metrics = one.metrics
    size, right = len(one.classes), one.predictions == one.labels
    found, missed = (np.bincount(one.labels[mask], minlength=size) for mask in (right, ~right))
    bounds = intervals(found, missed, one.groups)
    figures = [{"figure": key, "value": metrics[key], **bounds[key]} for key in FIGURES]
    seen = sorted((row for row in metrics["per_class"] if row["recall"] is not None), key=lambda row: row["recall"])
    worst = seen[: -(-len(seen) // 10)]
    return {
        "figures": figures,
        "worst_tenth": float(np.mean([row["recall"] for row in worst])) if worst else None,
        "worst": [row["name"] for row in worst],
        "never": [row["name"] for row in seen if row["recall"] == 0],
    }


def paired(first: Evidence, other: Evidence) -> list[Facts] | None:
    """Return how much better `other` is than `first` on the same images, with 95% intervals; None if images differ.

    Images are matched by name. Groups are those of the first run.
    """
    order = matched(first.images, other.images)
    if order is None or not np.array_equal(first.labels, other.labels[order]):
        return None
    size = len(first.classes)
    a, b = first.predictions == first.labels, other.predictions[order] == first.labels
    won, lost, same = (np.bincount(first.labels[mask], minlength=size) for mask in (b & ~a, a & ~b, a == b))
    return [{"figure": key, **row} for key, row in paired_intervals(won, lost, same, first.groups).items()]


def matched(first: Sequence[str], other: Sequence[str]) -> Ints | None:
    """Return the index in `other` of each image of `first`, by name; None if they are not the same images.

    >>> matched(["a", "b", "c"], ["c", "a", "b"]).tolist(), matched(["a"], ["b"])
    ([1, 2, 0], None)
    """
    if list(first) == list(other):
        return np.arange(len(first))
    places = {name: k for k, name in enumerate(other)}
    if len(places) != len(other) or len(set(first)) != len(first) or set(places) != set(first):
        return None
    return np.array([places[name] for name in first])


def smooth(counts: Ints, recalls: Sequence[float | None]) -> list[dict[str, float]]:
    """Return recall as a smooth function of the number of training images: a Gaussian kernel mean on the log axis."""
    seen = np.array([recall is not None for recall in recalls])
    if len(set(counts[seen].tolist())) < 3:
        return []
    x, y = np.log10(np.maximum(counts[seen], 0.5)), np.array([r for r in recalls if r is not None])
    grid = np.linspace(x.min(), x.max(), 40)
    width = max(0.12 * (x.max() - x.min()), 0.08)
    weights = np.exp(-0.5 * ((grid[:, None] - x) / width) ** 2)
    curve = weights @ y / weights.sum(1)
    return [{"train": float(10**at), "recall": float(value)} for at, value in zip(grid, curve, strict=True)]


def sentence(found: Sequence[Evidence], summaries: Sequence[Facts]) -> str:
    """Return a few sentences on what stands out."""
    if not found[0].metrics["n"]:
        return "There are no test images, so there is nothing to report."
    return _compared(found) if len(found) > 1 else _described(found[0].metrics, summaries[0])


def _described(metrics: Facts, one: Facts) -> str:
    there = [key for key in reversed(GROUPS) if metrics[key] is not None]
    rare, frequent = (there[0], there[-1]) if len(there) > 1 else (None, None)
    words = [f"Classes are recognized {percent(metrics['macro'], 0)}% of the time on average."]
    if rare and frequent:
        low, high = metrics[rare], metrics[frequent]
        how = next(word for limit, word in _HOW_OFTEN if high - low > limit)
        bounds = {row["figure"]: row for row in one["figures"]}
        apart = bounds[rare]["high"] < bounds[frequent]["low"] or bounds[rare]["low"] > bounds[frequent]["high"]
        chance = "" if apart or how == _HOW_OFTEN[2][1] else ", but with so few test images this may be chance"
        both = f"{percent(low, 0)}% of the time against {percent(high, 0)}%"
        words = [f"Rare classes are recognized {how} frequent ones: {both}{chance}."]
    pull = one["pull"][rare] if rare else None
    if pull and pull["errors"] >= 10 and pull["share"] > pull["expected"] + 0.05:
        words.append(
            f"Of their errors, {percent(pull['share'], 0)}% go to a more frequent class; "
            f"by chance it would be {percent(pull['expected'], 0)}%."
        )
    if one["never"]:
        tested = len(metrics["per_class"]) - metrics["absent"]
        words.append(f"Never recognized: {len(one['never'])} of {plural(tested, 'class')}.")
    if metrics["ece"] > 0.1:
        words.append(f"On average, the model's confidence is off by {percent(metrics['ece'], 0)} percentage points.")
    return " ".join(words)


def _compared(found: Sequence[Evidence]) -> str:
    key = next(key for key in ("few", "medium", "many") if found[0].metrics[key] is not None)
    what = {"few": "rare classes", "medium": "classes of medium frequency", "many": "the classes"}[key]
    best = max(found, key=lambda one: one.metrics[key] or 0)
    if any(paired(one, best) is None for one in found):
        each = join_words([f"{one.name} recognizes {percent(one.metrics[key], 0)}%" for one in found])
        return f"On {what}, {each}. They were tested on different images, so this is not a comparison."
    gains = [(one, _gain(one, best, key)) for one in found if one is not best]
    behind = [(one, gain) for one, gain in gains if gain["low"] > 0]
    tied = [one for one, gain in gains if gain["low"] <= 0]

    def scores(some: Sequence[Evidence]) -> str:
        return join_words([f"{percent(one.metrics[key], 0)}%" for one in some])

    if not behind:
        return f"On {what}, the runs do not differ significantly: {scores(found)} recognized."
    lead = f"On {what}, {join_words([one.name for one in (best, *tied)])} {'are' if tied else 'is'} best"
    lead += " without a significant difference" if tied else ""
    nearest, gain = max(behind, key=lambda pair: pair[0].metrics[key] or 0)
    span = f"{100 * gain['low']:.0f} to {100 * gain['high']:.0f} points"
    rest = join_words([f"{percent(one.metrics[key], 0)}% by {one.name}" for one, _ in behind])
    whom = f"{best.name} is {span} ahead of {nearest.name}" if tied or len(behind) > 1 else f"{span} ahead"
    return f"{lead}: {scores([best, *tied])} recognized, against {rest} ({whom} on the same images)."


def _gain(first: Evidence, other: Evidence, key: str) -> Facts:
    """Return the interval of the paired difference of one metric; 0 to 0 without one."""
    none = {"low": 0.0, "high": 0.0}
    return next((row for row in paired(first, other) or [] if row["figure"] == key and row["low"] is not None), none)
