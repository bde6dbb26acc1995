"""Everything that the page shows, in one dictionary, ready for JSON."""

from collections.abc import Sequence

from gpaco.data.samples import Splits
from gpaco.metrics.arrays import Ints
from gpaco.metrics.groups import GROUPS, gini, imbalance_factor
from gpaco.pages.classification import calibration, corruptions, flows, latency, theory, whatif
from gpaco.pages.classification.evidence import Evidence, log_priors
from gpaco.pages.classification.images import ROOM, Album, missed_images
from gpaco.pages.classification.provenance import provenance
from gpaco.pages.classification.summary import FIGURES, paired, sentence, smooth, summary
from gpaco.pages.paper_number import paper_number
from gpaco.pages.render import Facts


def collect(found: Sequence[Evidence], data: Sequence[Splits | str]) -> Facts:
    """Return what the page shows; `data` has the data of each run, or the reason why it is missing."""
    first = found[0]
    counts = first.counts
    album, runs = Album(), list[Facts]()
    differences: list[Facts | None] = [None]
    for other in found[1:]:
        rows = paired(first, other)
        differences.append(None if rows is None else {"against": first.name, "rows": rows})
    for one, source in zip(found, data, strict=True):
        album.room = ROOM
        runs.append(_about_run(one, counts, album, source))
    return {
        "classes": first.classes,
        "groups": first.groups.tolist(),
        "train": counts.tolist(),
        "test": [row["test"] for row in first.metrics["per_class"]],
        "cuts": first.metrics["cuts"],
        "bins": calibration.BINS,
        "imbalance": imbalance_factor(counts),
        "gini": gini(counts),
        "sentence": sentence(found, runs),
        "notes": _notes(found, differences),
        "figures": FIGURES,
        "runs": runs,
        "differences": differences,
        "robustness": corruptions.robustness(found),
        "latency": latency.latency(found),
        "paper": list(filter(None, (_beside_the_paper(one, run) for one, run in zip(found, runs, strict=True)))),
        "priors": {name: prior.tolist() for name, prior in log_priors(counts).items()},
        "thumbnails": album.thumbnails,
        "data": first.data,
        "single": [name for name, count in zip(first.classes, counts, strict=True) if count == 1],
        "untested": [row["name"] for row in first.metrics["per_class"] if row["test"] == 0],
    }


def _beside_the_paper(one: Evidence, run: Facts) -> Facts | None:
    figure = next(row for row in run["figures"] if row["figure"] == "top1")
    return paper_number(one.run, figure["value"], figure["low"], figure["high"])


def _about_run(one: Evidence, counts: Ints, album: Album, source: Splits | str) -> Facts:
    metrics = one.metrics
    rows, factors = metrics["per_class"], metrics.get("calibration")
    pairs = flows.confused_pairs(one)
    return {
        "name": one.name,
        "method": metrics["method"],
        "assumes": metrics["assumes"],
        "fused": bool(factors and factors["head"] and factors["gaussian"]),
        "raw": whatif.raw_position(one, counts),
        "n": metrics["n"],
        "evaluated_on": metrics["evaluated_on"],
        "selected_on": metrics["selected_on"],
        "metrics": {key: metrics[key] for key in ("macro_f1", "geometric_mean", "ece", "long_tailed", "reversed")},
        **summary(one),
        **{key: [row[key] for row in rows] for key in ("train", "test", "recall", "precision", "f1")},
        "low": [row["interval"] and row["interval"][0] for row in rows],
        "high": [row["interval"] and row["interval"][1] for row in rows],
        "curve": smooth(one.counts, [row["recall"] for row in rows]),
        "flows": flows.flows(one),
        "confusion": flows.confusion(one),
        "pull": flows.head_pull(one),
        "pairs": flows.strongest_pairs(one, pairs),
        "neighbors": flows.neighbors(pairs, len(rows)),
        **missed_images(one, album, source),
        "right": whatif.changes(whatif.along(one, counts)),
        "reliability": calibration.reliability(one),
        "temperature": calibration.tempered(one),
        "classwise_ece": calibration.classwise_ece(one),
        "overconfidence": calibration.overconfidence(one),
        "gradients": theory.gradients(one),
        "optimum": theory.optimum(one),
        "extra_loss": theory.extra_loss(one),
        "provenance": provenance(one),
    }


def _notes(found: Sequence[Evidence], differences: Sequence[Facts | None]) -> list[str]:
    """Return what a reader needs to know before comparing numbers."""
    notes = []
    first = found[0]
    for one, difference in zip(found[1:], differences[1:], strict=True):
        both = f"{one.name} and {first.name}"
        if difference is None:
            notes.append(f"{both} were not tested on the same images, so there is no paired difference.")
        if one.metrics["counts"] != first.metrics["counts"]:
            notes.append(
                f"{both} have different numbers of training images per class. Groups and slider "
                f"follow {first.name}; the marks of {one.name} follow its own numbers."
            )
    absent = first.metrics["absent"]
    if absent:
        have = "class has" if absent == 1 else "classes have"
        notes.append(f"{absent} {have} no test images, so no accuracy: the means leave them out.")
    empty = [name for name in GROUPS if first.metrics["groups"][name] == 0]
    if empty:
        notes.append(f"No class is in the group {' or '.join(empty)}.")
    return notes
