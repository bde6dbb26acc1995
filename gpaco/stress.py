"""robustness(): how a run does on corrupted pictures, on those of published sets, and which classes suffer first."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpaco.classification import choose_device
from gpaco.conditions import CLEAN, Corrupting, Pictures, Source, answers_under, picture_side
from gpaco.corruption import COMMON, CONSTANTS, SEVERITIES, VERSION, chosen, constants_for
from gpaco.corruption_metrics import ALEXNET, ALEXNET_CLEAN, errors
from gpaco.data.class_maps import class_map, is_imagenet, published_as
from gpaco.data.samples import Samples
from gpaco.data.shifted import Arrays, Condition, Tree, read_shifted
from gpaco.data.splitting import by_class
from gpaco.distortions import frost_folder
from gpaco.errors import UserError, nearest
from gpaco.evaluation import check_correction, evaluation_part, final_logits
from gpaco.files import append_jsonl, trim_jsonl, write_atomic
from gpaco.matching import Match, match, restricted
from gpaco.run import Predictor, Run, as_run, load
from gpaco.stress_results import Measured, summary

Bar = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
Say = Callable[[str], None]

PREPROCESSING = ("official", "paper")
_WORTH_WORKERS = 2000  # pictures; fewer are made before other processes have started


def robustness(
    run: Run | Path | str,
    data: Path | str | None = None,
    *,
    baseline: Path | str | None = None,
    clean: Path | str | None = None,
    corruptions: str | None = None,
    severities: str | None = None,
    subset: int | None = None,
    seed: int = 0,
    constants: str | None = None,
    preprocessing: str = "official",
    restrict: bool = False,
    prior: str | None = None,
    unbiased: bool = False,
    which: str = "best",
    on_bad_image: str = "error",
    workers: int | None = None,
    device: str | None = None,
    out: Path | str | None = None,
    say: Say = lambda line: None,
    bar: Bar | None = None,
) -> dict[str, Any]:
    """Errors of a run by corruption, severity and group, and their means (docs/robustness.md has every key).

    What is known from a run of the same command that was stopped is not computed again.

    Args:
        run: a run.
        data: any labelled images, to be corrupted here; or ImageNet-C, CIFAR-10-C or -100-C as published; or
            ImageNet-R, -A, -V2 or -Sketch, which are taken as they are. The run's own test data unless given.
        baseline: another run, or "alexnet" (ImageNet only), for `mce` and `relative_mce`.
        clean: the clean images of a published corrupted set.
        corruptions, severities: comma-separated; all unless given.
        subset: about so many images, with all classes in proportion, chosen by `seed`.
        seed: of the corruptions, picture by picture, and of the subset.
        constants: "imagenet" or "cifar"; by the size of the pictures unless given.
        preprocessing: "official", or "paper" (resize 256, crop 224 also where pictures have 224 pixels).
        restrict: let the model answer with the classes of the data only; ImageNet-R and -A always do.
        on_bad_image: "error", or "skip", which lists what it leaves out.
        out: folder for `robustness*.json` and `robustness.jsonl`; the run's unless given.
    """
    for value, known, what in (
        (preprocessing, PREPROCESSING, "preprocessing"),
        (on_bad_image, ("error", "skip"), "on_bad_image"),
        (constants, (None, *CONSTANTS), "a table of constants"),
    ):
        if value not in known:
            words = [word for word in known if word]
            raise UserError(f"{what} is {' or '.join(words)}, got {value!r}{nearest(str(value), words)}", "see --help")
    bar = bar or (lambda title: nullcontext(lambda done, total: None))
    wanted = _severities(severities)
    run = as_run(run)
    where = choose_device(device)
    predictor = load(run, which=which, device=where)
    check_correction(predictor, prior, unbiased)
    with bar("looking through the folders") as show:
        source, stem = _source(run, predictor, data, constants, seed, show)
    found = _matched(source, predictor.classes)
    notes = found.notes(predictor.classes)
    conditions = _conditions(source, corruptions, wanted, notes)
    if isinstance(source, Pictures) and any(name == "frost" for name, _ in conditions):
        frost_folder()  # an error now rather than in the middle
    indices = found.known if subset is None else found.known[stratified_subset(found.labels[found.known], subset, seed)]
    restrict = restrict or source.reader in ("imagenet-r", "imagenet-a")

    folder = Path(out) if out is not None else run.folder
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "robustness.jsonl"
    jobs = [(source, conditions, found, indices)]
    if clean is not None:
        if isinstance(source, Pictures):
            raise UserError(f"the clean error of {source.reader} pictures is that of the data", "leave out --clean")
        jobs.append(_clean_job(run, clean, predictor, subset, seed))
    say(
        f"{len(indices):,} pictures ({source.reader}), {sum(condition != CLEAN for condition in conditions)} conditions"
    )

    def measured(model: Predictor) -> Measured:
        """The errors of a model under every condition, from the log where they are there."""
        result = Measured({}, [])
        for pictures, wanted_here, matching, rows in jobs:
            own = replace_about(pictures, model)
            setup = _Setup(model, own, matching, rows, view_for(own, model, preprocessing), restrict, prior, unbiased)
            _measure(setup, wanted_here, log, result, on_bad_image == "skip", _workers(workers), bar, say)
        return result

    mine = measured(predictor)
    other = _baseline(baseline, source, found, predictor, which, where, measured, notes, say)
    result = summary(mine, other, predictor.about, found, conditions, notes)
    result |= {
        "run": str(run.folder),
        "data": str(data) if data is not None else run.recipe.data.path,
        "set": source.reader,
        "n": len(indices),
        "subset": subset,
        "seed": seed,
        "constants": source.corrupting.constants if isinstance(source, Pictures) and source.corrupting else None,
        "preprocessing": preprocessing,
        "overlap": found.facts(restrict),
        "prior": prior,
        "unbiased": unbiased,
    }
    name = "robustness" + (f"-{stem}" if stem else "") + ".json"
    write_atomic(folder / name, json.dumps(result, indent=1))
    say(f"written: {folder / name}")
    return result


def stratified_subset(labels: NDArray[np.int64], n: int, seed: int) -> NDArray[np.int64]:
    """`n` indices, rising, in which every class has its share, and at least one image as long as there is room.

    >>> labels = np.array([0] * 90 + [1] * 9 + [2])
    >>> np.bincount(labels[stratified_subset(labels, 10, seed=0)]).tolist()
    [8, 1, 1]
    """
    if n < 1:
        raise UserError(f"a subset of {n} images is none", "--subset 1000 is usual")
    order = np.random.RandomState([seed % 2**32]).permutation(len(labels))
    shuffled = [order[own] for own in by_class(labels[order]) if len(own)]
    places = np.concatenate([np.arange(len(own)) / len(own) for own in shuffled])
    first = np.argsort(places, kind="stable")[:n]
    return np.sort(np.concatenate(shuffled)[first])


def replace_about(source: Source, model: Predictor) -> Source:
    """The same pictures for another model: corrupted at its size."""
    if isinstance(source, Pictures) and source.corrupting is not None:
        return replace(source, corrupting=replace(source.corrupting, about=model.about))
    return source


def view_for(source: Source, model: Predictor, preprocessing: str) -> dict[str, Any]:
    """How a picture is brought to the size of the model, by the protocol of its set."""
    size = model.about["size"]
    scaled = round(size * 256 / 224)
    if isinstance(source, Tree):  # 224 pixels already
        return {"whole": False, "size": size, "resize": scaled if preprocessing == "paper" else size}
    if isinstance(source, Arrays):
        return model.about
    if source.corrupting is not None:  # at the size of the model already, or small and whole
        return {"whole": True, "size": size}
    return model.about if source.reader == "as they are" else {"whole": False, "size": size, "resize": scaled}


@dataclass(frozen=True, eq=False)
class _Setup:
    """Everything that an error depends on, beside the condition."""

    model: Predictor
    source: Source
    match: Match
    indices: NDArray[np.int64]
    view: dict[str, Any]
    restrict: bool
    prior: str | None
    unbiased: bool

    def answers(self, logits: NDArray[np.float32]) -> NDArray[np.int64]:
        logits = final_logits(logits, self.model.about, prior=self.prior, unbiased=self.unbiased)
        logits = restricted(logits, self.match.there) if self.restrict else logits
        if not np.isfinite(logits.max(1)).all():
            raise UserError(
                "the model gives logits that are not finite: nothing can be said about its predictions",
                "training has diverged: evaluate an older checkpoint",
            )
        return np.asarray(logits.argmax(1))

    def key(self, condition: Condition) -> str:
        """A digest of all of it: two results with the same key are the same."""
        words = [condition, self.source.fingerprint(condition)]
        return hashlib.sha256(self._common + json.dumps(words).encode()).hexdigest()

    @cached_property
    def _common(self) -> bytes:
        about, state = self.model.about, hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            state.update(name.encode())
            state.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        zeros = np.zeros((1, len(about["counts"])), np.float32)
        state.update(final_logits(zeros, about, prior=self.prior, unbiased=self.unbiased).tobytes())
        how = self.source.corrupting if isinstance(self.source, Pictures) else None
        words = [VERSION, self.source.reader, self.restrict, how and [how.constants, how.seed]]
        words += [[about[key] for key in ("classes", "counts", "mean", "std", "many", "few", "whole", "resize")]]
        words += [[self.view.get(key) for key in ("whole", "size", "resize")]]
        state.update(json.dumps(words).encode())
        for array in (self.indices, self.match.labels, self.match.there):
            state.update(array.tobytes())
        return state.digest()


def _measure(
    setup: _Setup,
    conditions: Sequence[Condition],
    log: Path,
    result: Measured,
    skip: bool,
    workers: int,
    bar: Bar,
    say: Say,
) -> None:
    """Add the errors under each condition to `result`: from the log, or computed and written there."""
    keys = {condition: setup.key(condition) for condition in conditions}
    known = {row["key"]: row for row in trim_jsonl(log, lambda row: "key" in row)}
    rows = {condition: known[key] for condition, key in keys.items() if key in known}
    if rows and len(rows) < len(conditions):
        say(f"{len(rows)} conditions are known from before")
    missing = [condition for condition in conditions if condition not in rows]
    about, source = setup.model.about, setup.source
    few = len(missing) * len(setup.indices) < _WORTH_WORKERS
    with bar("robustness") as show:
        for condition, classes, bad in answers_under(
            setup.model,
            source,
            missing,
            setup.indices,
            setup.view,
            setup.answers,
            skip=skip,
            workers=0 if few else workers,
            show=show,
        ):
            good = classes >= 0
            labels = setup.match.labels[setup.indices][good]
            row = {
                "key": keys[condition],
                "condition": condition[0],
                "severity": condition[1],
                **errors(classes[good], labels, about["counts"], about["many"], about["few"]),
                "skipped": [[source.names[i], reason] for i, reason in bad],
            }
            if not good.any():
                raise UserError(f"not one picture under {condition[0]} {condition[1]} can be read", "look at the files")
            append_jsonl(log, row)
            rows[condition] = row
    for condition in conditions:
        result.rows[condition] = rows[condition]
        result.skipped.extend(
            f"{condition[0]} {condition[1]}: {name}: {reason}" for name, reason in rows[condition]["skipped"]
        )


def _source(
    run: Run, predictor: Predictor, data: Path | str | None, constants: str | None, seed: int, show: Any
) -> tuple[Source, str]:
    """Where the pictures come from, and the word for the file of the result; none for the run's own test data."""
    shifted = None if data is None else read_shifted(Path(data), show)
    if shifted is not None:
        return shifted, shifted.reader
    samples = evaluation_part(run.recipe, data)
    if data is None:
        return _corrupted(samples, predictor, constants, seed), ""
    stem = Path(data).resolve().name
    published = published_as(samples.classes)
    if published is None and set(samples.classes) == set(class_map("imagenet")) and "sketch" in stem.lower():
        published = "imagenet-sketch"
    if published is not None and is_imagenet(predictor.classes):
        return Pictures(samples, published), published
    return _corrupted(samples, predictor, constants, seed), stem


def _corrupted(samples: Samples, predictor: Predictor, constants: str | None, seed: int) -> Pictures:
    if not len(samples):
        raise UserError("there is no image to test on", "give data: gpaco robustness RUN DATA")
    table = constants or constants_for(picture_side(samples, predictor.about))
    return Pictures(samples, "corrupted here", Corrupting(predictor.about, table, seed))


def _clean_job(
    run: Run, clean: Path | str, predictor: Predictor, subset: int | None, seed: int
) -> tuple[Source, tuple[Condition, ...], Match, NDArray[np.int64]]:
    pictures = Pictures(evaluation_part(run.recipe, clean), "as they are")
    found = match(pictures.labels, pictures.classes, predictor.classes)
    known = found.known
    rows = known if subset is None else known[stratified_subset(found.labels[known], subset, seed)]
    return pictures, (CLEAN,), found, rows


def _matched(source: Source, classes: tuple[str, ...]) -> Match:
    found = match(source.labels, source.classes, classes)
    if isinstance(source, Tree | Arrays) and found.unknown:
        word = found.unknown[0]
        raise UserError(
            f"the data has a class {word!r} that the model does not know{nearest(word, classes)}",
            "a published set needs a model of its classes; mend the folder's name, or take it away",
        )
    return found


def _severities(words: str | None) -> tuple[int, ...]:
    if words is None:
        return SEVERITIES
    parts = [word.strip() for word in words.split(",")]
    if not all(word in map(str, SEVERITIES) for word in parts):
        raise UserError(f"severities are 1 to 5, got {words!r}", "for example --severities 1,3,5")
    return tuple(sorted(set(map(int, parts))))


def _conditions(
    source: Source, corruptions: str | None, severities: tuple[int, ...], notes: list[str]
) -> tuple[Condition, ...]:
    """The conditions to test under; what is asked for and not there is an error, what is only missing is a note."""
    there = source.conditions
    if there == (CLEAN,):
        if corruptions is not None:
            raise UserError(f"{source.reader} is taken as it is, without corruptions", "leave out --corruptions")
        return there
    names = chosen(corruptions)
    absent = [name for name in names if not any(condition[0] == name for condition in there)]
    if corruptions is not None and absent:
        have = ", ".join(dict.fromkeys(name for name, _ in there))
        raise UserError(f"the data has no {absent[0]}", f"it has {have}")
    wanted = tuple(c for c in there if c == CLEAN or (c[0] in names and c[1] in severities))
    missing = [f"{name} {severity}" for name in COMMON for severity in SEVERITIES if (name, severity) not in wanted]
    if all(condition == CLEAN for condition in wanted):
        raise UserError("nothing is left to test under", "choose other --corruptions or --severities")
    if missing:
        few = ", ".join(missing[:3]) + ", ..." * (len(missing) > 3)
        notes.append(f"{len(missing)} of the 75 conditions are missing ({few}): means over all of them are null")
    return wanted


def _baseline(
    baseline: Path | str | None,
    source: Source,
    found: Match,
    predictor: Predictor,
    which: str,
    device: torch.device,
    measured: Callable[[Predictor], Measured],
    notes: list[str],
    say: Say,
) -> Measured | None:
    """The errors to compare with."""
    if source.conditions == (CLEAN,):
        if baseline is not None:
            raise UserError(f"{source.reader} has no corruptions to compare", "leave out --baseline")
        return None
    imagenet = is_imagenet(predictor.classes)
    if baseline is None:
        if not (isinstance(source, Tree) and imagenet and not found.absent):
            notes.append("mce and relative_mce need a baseline: --baseline RUN")
            return None
        baseline = "alexnet"
    if str(baseline) == "alexnet":
        if not imagenet:
            raise UserError(
                "AlexNet's errors are known for the 1,000 classes of ImageNet only",
                "give a run of yours: --baseline RUN",
            )
        if not isinstance(source, Tree):
            notes.append("AlexNet's errors are of the published files of ImageNet-C, not of pictures corrupted here")
        return Measured.of_means("AlexNet", ALEXNET, ALEXNET_CLEAN)
    other = load(as_run(baseline), which=which, device=device)
    if other.classes != predictor.classes:
        raise UserError(f"{baseline} does not have the same classes", "choose a baseline trained on the same classes")
    if other.about["size"] != predictor.about["size"]:
        notes.append(f"the baseline sees pictures of {other.about['size']} pixels, the run {predictor.about['size']}")
    say(f"the baseline, {baseline}:")
    result = replace(measured(other), name=str(baseline))
    if other.about["counts"] != predictor.about["counts"]:
        notes.append("the baseline was trained on other class counts: no mce by group")
        return replace(result, by_group=False)
    return result


def _workers(workers: int | None) -> int:
    if workers is not None:
        if workers < 0:
            raise UserError(f"{workers} processes cannot load images", "--workers 2, or 0 for none beside this one")
        return workers
    affinity = getattr(os, "sched_getaffinity", None)
    return min(len(affinity(0)) if affinity else os.cpu_count() or 1, 8)
