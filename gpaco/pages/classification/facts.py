"""Everything that the page shows, gathered from runs and their data into one dictionary that is ready for JSON."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpaco.data.samples import Samples, Splits
from gpaco.errors import Problem
from gpaco.metrics.classification import GROUPS, Ints
from gpaco.metrics.groups import gini, imbalance_factor
from gpaco.pages.classification import calibration, corruptions, flows, theory, whatif
from gpaco.pages.classification import images as pictures
from gpaco.pages.classification.evidence import Evidence, Facts, log_priors
from gpaco.pages.classification.provenance import provenance
from gpaco.pages.classification.summary import FIGURES, paired, sentence, smooth, summary
from gpaco.system.progress import Say
from gpaco.tasks.classification.splits import splits_of

_PICTURES = 1_500_000  # bytes of the page


def collect(found: Sequence[Evidence], data: Sequence[Splits | str]) -> Facts:
    """Everything that the page shows, ready for JSON."""
    first = found[0]
    counts = first.counts
    album = pictures.Album(_PICTURES)
    sources = list(data) or ["images were left out"] * len(found)
    differences = [None] + [_difference(first, other) for other in found[1:]]
    runs = [_about_run(one, counts, album, source) for one, source in zip(found, sources, strict=True)]
    corrupted = corruptions.robustness(found)
    words = [sentence(found, runs), corruptions.sentence([one.name for one in found], corrupted)]
    return {
        "classes": first.classes,
        "groups": first.groups.tolist(),
        "train": counts.tolist(),
        "test": [row["test"] for row in first.metrics["per_class"]],
        "cuts": first.metrics["cuts"],
        "imbalance": imbalance_factor(counts),
        "gini": gini(counts),
        "sentence": " ".join(filter(None, words)),
        "notes": _notes(found, differences),
        "figures": FIGURES,
        "runs": runs,
        "differences": differences,
        "robustness": corrupted,
        "priors": {name: prior.tolist() for name, prior in log_priors(counts).items()},
        "pictures": album.pictures,
        "data": first.data,
        "single": [name for name, count in zip(first.classes, counts, strict=True) if count == 1],
        "untested": [row["name"] for row in first.metrics["per_class"] if row["test"] == 0],
    }


def _about_run(one: Evidence, counts: Ints, album: pictures.Album, source: Splits | str) -> Facts:
    metrics = one.metrics
    rows = metrics["per_class"]
    pairs = flows.confused_pairs(one)
    shown, why = _pictures(one, album, source)
    return {
        "name": one.name,
        "method": metrics["method"],
        "assumes": metrics["assumes"],
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
        "pull": flows.head_pull(one),
        "pairs": [row | {"asymmetry": flows.asymmetry(row)} for row in flows.strongest_pairs(one, pairs)],
        "neighbors": flows.neighbors(pairs, len(rows)),
        **shown,
        "pictures_note": why,
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


def _difference(first: Evidence, other: Evidence) -> Facts | None:
    rows = paired(first, other)
    return None if rows is None else {"against": first.name, "rows": rows}


def _notes(found: Sequence[Evidence], differences: Sequence[Facts | None]) -> list[str]:
    """What a reader has to know before comparing."""
    notes = []
    first = found[0]
    for one, difference in zip(found[1:], differences[1:], strict=True):
        if difference is None:
            notes.append(f"{one.name} was not tested on the same images as {first.name}: no paired difference.")
        if one.metrics["counts"] != first.metrics["counts"]:
            notes.append(
                f"{one.name} was not trained on as many images of each class as {first.name}: groups, and the "
                f"distributions of the slider, are those of {first.name}; its dots are where its own counts are."
            )
    absent = first.metrics["absent"]
    if absent:
        notes.append(f"{_number(absent, 'class has', 'classes have')} no test images: no accuracy, in no mean.")
    empty = [name for name in GROUPS if first.metrics["groups"][name] == 0]
    if empty:
        notes.append(f"No class is in the group {' or '.join(empty)}: its figures are none.")
    return notes


def data_of(found: Sequence[Evidence], splits: Splits | None, say: Say) -> list[Splits | str]:
    """The data of each run, or why it is not to be had; read once for all runs on the same data."""
    read: dict[Any, Splits | str] = {}
    result: list[Splits | str] = []
    for one in found:
        if splits is not None:
            result.append(splits)
            continue
        recipe = one.run.recipe
        wanted = replace(recipe, data=replace(recipe.data, on_bad_image="error"))  # pictures that are bad are left out
        if wanted.data not in read:
            try:
                say(f"reading {recipe.data.path} for its pictures (--no-pictures leaves them out)")
                read[wanted.data] = splits_of(wanted)
            except Problem as problem:
                read[wanted.data] = f"the data cannot be read: {problem.cause}"
        result.append(read[wanted.data])
    return result


def _pictures(one: Evidence, album: pictures.Album, source: Splits | str) -> tuple[Facts, str]:
    """The confused classes and the odd labels with the numbers of their pictures, and why there are none."""
    odd = pictures.suspects(one)
    confused = pictures.confused_classes(one, set(odd))
    listed = [_odd(one, k) for k in odd[: pictures.LISTED]]
    result = {"confused": confused, "suspects": listed, "suspects_found": len(odd)}
    if isinstance(source, str):
        return result, source
    tested = source.val if one.metrics["evaluated_on"] == "val" else source.test
    places = None if tested is None else pictures.find(tested, one.images)
    if tested is None or places is None or list(tested.classes) != one.classes:
        return result, "the data is not what it was when the run was evaluated"

    def add_tested(row: Facts) -> None:
        row["picture"] = album.add(tested, places[one.images[row["image"]]])

    for entry in confused:
        for row in entry["images"]:
            add_tested(row)
        for key, c in (("own", entry["class"]), ("other", entry["taken_for"])):
            entry[key] = _examples(album, source.train, c)
    for row in listed[: pictures.SHOWN]:
        add_tested(row)
    return result, ""


def _odd(one: Evidence, k: int) -> Facts:
    return {"image": k, "name": one.images[k], "class": int(one.labels[k]), "taken_for": int(one.uniform[k].argmax())}


def _examples(album: pictures.Album, train: Samples, c: int) -> list[int]:
    numbers = [album.add(train, int(i)) for i in pictures.examples(train, c)]
    return [number for number in numbers if number is not None]


def _number(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
