"""robustness(): errors of a run on corrupted images and on published sets, by corruption, severity and group."""

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpaco.data.class_maps import is_imagenet
from gpaco.data.corruption.corruptions import CONSTANTS, VERSION
from gpaco.data.corruption.distortions import frost_folder
from gpaco.data.corruption.images import Images, Source
from gpaco.data.corruption.published import CLEAN, Condition, Tree
from gpaco.errors import UserError, nearest
from gpaco.metrics.corruption import ALEXNET, ALEXNET_CLEAN, Errors, group_errors, summary
from gpaco.metrics.groups import GROUPS, groups
from gpaco.system.devices import choose_device
from gpaco.system.progress import Bar, Say
from gpaco.tasks.classification.answers import answers_under
from gpaco.tasks.classification.card import Card
from gpaco.tasks.classification.class_match import Match, restricted
from gpaco.tasks.classification.predictor import Predictor, load_classifier
from gpaco.tasks.classification.priors import check_correction, final_logits
from gpaco.tasks.classification.robustness_data import (
    Part,
    clean_part,
    conditions_of,
    for_model,
    matched_classes,
    part_of,
    severities_of,
    source_of,
    view_for,
)
from gpaco.tasks.known_conditions import KnownConditions, Row, model_digest, write_result
from gpaco.training.run import Run, as_run

PREPROCESSING = ("official", "paper")
_WORTH_WORKERS = 2000  # images; fewer are made before other processes have started


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

    The same call resumes where it stopped: conditions in the log are not computed again.

    Args:
        run: a run.
        data: any labeled images, to be corrupted here; or ImageNet-C, CIFAR-10-C or -100-C as published; or
            ImageNet-R, -A, -V2 or -Sketch, which are taken as they are. The run's own test data unless given.
        baseline: another run, or "alexnet" (ImageNet only), for `mce` and `relative_mce`.
        clean: the clean images of a published corrupted set.
        corruptions, severities: comma-separated; all unless given.
        subset: about so many images, with all classes in proportion, chosen by `seed`.
        seed: of the corruptions, image by image, and of the subset.
        constants: "imagenet" or "cifar"; by the size of the images unless given.
        preprocessing: "official", or "paper" (resize 256, crop 224 also where images have 224 pixels).
        restrict: let the model answer with the classes of the data only; ImageNet-R and -A always do.
        on_bad_image: "error", or "skip", which lists what it leaves out.
        out: folder for `robustness*.json` and `robustness.jsonl`; the run's unless given.
    """
    _check_words(preprocessing, on_bad_image, constants)
    bar = bar or (lambda title: nullcontext(lambda done, total: None))
    wanted, processes = severities_of(severities), _workers(workers)
    run, where = as_run(run), choose_device(device)
    folder = Path(out) if out is not None else run.folder
    if run.recipe.train.task == "segmentation":
        from gpaco.tasks.segmentation.robustness import scene_robustness

        if clean or restrict or prior or unbiased or workers or preprocessing != "official" or on_bad_image != "error":
            raise UserError(
                "of a segmenter, robustness takes no --clean, --restrict, --prior, --unbiased, --on-bad-image, "
                "--workers and no preprocessing",
                "leave them out",
            )
        return scene_robustness(
            run,
            data,
            baseline=baseline,
            corruptions=corruptions,
            severities=wanted,
            subset=subset,
            seed=seed,
            constants=constants,
            which=which,
            device=where,
            folder=folder,
            say=say,
            bar=bar,
        )
    predictor = load_classifier(run, which=which, device=where)
    check_correction(predictor.card, prior, unbiased)

    others = [] if baseline is None or str(baseline) == "alexnet" else [as_run(baseline)]
    with bar("looking through the folders") as show:
        source, stem = source_of(run, predictor, data, constants, seed, others=others, show=show, say=say)
    found = matched_classes(source, predictor.classes)
    notes = found.notes(predictor.classes)
    conditions = conditions_of(source, corruptions, wanted, notes)
    if isinstance(source, Images) and any(name == "frost" for name, _ in conditions):
        frost_folder()  # an error now rather than in the middle
    place = str(data) if data is not None else run.recipe.data.path
    parts = [part_of(place, source, found, conditions, subset, seed)]
    if clean is not None:
        if isinstance(source, Images):
            raise UserError(f"the clean error of {source.reader} images is that of the data", "leave out --clean")
        parts.append(clean_part(run, clean, predictor.classes, subset, seed))
    other = _baseline(baseline, source, found, predictor, which, notes)

    folder.mkdir(parents=True, exist_ok=True)
    restrict = restrict or source.reader in ("imagenet-r", "imagenet-a")
    setup = _Setup(
        parts, preprocessing, restrict, prior, unbiased, subset, seed, which, folder, on_bad_image == "skip", processes
    )
    tested = sum(condition != CLEAN for condition in conditions)
    say(f"{len(parts[0].indices):,} images ({source.reader}), {tested} conditions")
    mine = setup.measure(run, predictor, bar, say)
    if isinstance(other, Predictor):
        say(f"the baseline, {baseline}:")
        alike = other.card.counts == predictor.card.counts
        other = replace(setup.measure(others[0], other, bar, say), name=str(baseline), by_group=alike)

    cuts = {"many": predictor.card.many, "few": predictor.card.few}
    result = summary(mine, other, _group_sizes(predictor, found, notes), cuts, conditions, notes)
    result |= {
        "run": str(run.folder),
        "data": place,
        "set": source.reader,
        "n": len(parts[0].indices),
        "subset": subset,
        "seed": seed,
        "constants": source.corrupting.constants if isinstance(source, Images) and source.corrupting else None,
        "preprocessing": preprocessing,
        "overlap": found.facts(restrict),
        "prior": prior,
        "unbiased": unbiased,
    }
    write_result(folder, stem, result, say)
    return result


@dataclass(frozen=True, eq=False)
class _Setup:
    """A test of any model: everything that an error depends on beside the model and the condition."""

    parts: Sequence[Part]
    preprocessing: str
    restrict: bool
    prior: str | None
    unbiased: bool
    subset: int | None
    seed: int
    which: str
    folder: Path  # of the log
    skip: bool  # leave out images that cannot be read
    workers: int

    def measure(self, run: Run, model: Predictor, bar: Bar, say: Say) -> Errors:
        """Errors of a model under every condition, from the log where they are there."""
        result, digest = Errors({}, []), model_digest(run, self.which)
        for part in self.parts:
            part = replace(part, source=for_model(part.source, model))
            known = KnownConditions(self.folder / "robustness.jsonl", digest, self._arguments(part, model))
            compute = partial(self._rows, part, model, bar)
            rows = known.complete(part.conditions, compute, say, lambda row: self.skip or not row["skipped"])
            result.rows.update(rows)
            for (name, severity), row in rows.items():
                result.skipped.extend(f"{name} {severity}: {image}: {reason}" for image, reason in row["skipped"])
        return result

    def _arguments(self, part: Part, model: Predictor) -> dict[str, Any]:
        corrupting = part.source.corrupting if isinstance(part.source, Images) else None
        return {
            "version": VERSION,
            "data": part.data,
            "set": part.source.reader,
            "images": len(part.indices),
            "subset": self.subset,
            "seed": self.seed,
            "constants": corrupting and corrupting.constants,
            "preprocessing": self.preprocessing,
            "restrict": self.restrict,
            "prior": self.prior,
            "unbiased": self.unbiased,
            "tuned": asdict(model.card.tuned) if model.card.tuned else None,
        }

    def _rows(
        self, part: Part, model: Predictor, bar: Bar, conditions: Sequence[Condition]
    ) -> Iterator[tuple[Condition, Row]]:
        card, labels = model.card, part.match.labels[part.indices]
        few = len(conditions) * len(part.indices) < _WORTH_WORKERS
        with bar("robustness") as show:
            for condition, classes, bad in answers_under(
                model,
                part.source,
                conditions,
                part.indices,
                view_for(part.source, model, self.preprocessing),
                _Choice(card, part.match, self.restrict, self.prior, self.unbiased),
                skip=self.skip,
                workers=0 if few else self.workers,
                show=show,
            ):
                good = classes >= 0
                if not good.any():
                    raise UserError(f"no image under {condition[0]} {condition[1]} can be read", "look at the files")
                row = group_errors(classes[good], labels[good], card.counts, card.many, card.few)
                yield condition, row | {"skipped": [[part.source.names[i], reason] for i, reason in bad]}


@dataclass(frozen=True, eq=False)
class _Choice:
    """The class that wins, from logits (N, C)."""

    card: Card
    match: Match
    restrict: bool
    prior: str | None
    unbiased: bool

    def __call__(self, logits: NDArray[np.float32]) -> NDArray[np.int64]:
        logits = final_logits(logits, self.card, prior=self.prior, unbiased=self.unbiased)
        logits = restricted(logits, self.match.there) if self.restrict else logits
        if not np.isfinite(logits.max(1)).all():
            raise UserError(
                "the model gives logits that are not finite: nothing can be said about its predictions",
                "training has diverged: evaluate an older checkpoint",
            )
        return np.asarray(logits.argmax(1))


def _check_words(preprocessing: str, on_bad_image: str, constants: str | None) -> None:
    for value, known, what in (
        (preprocessing, PREPROCESSING, "preprocessing"),
        (on_bad_image, ("error", "skip"), "on_bad_image"),
        (constants or "cifar", tuple(CONSTANTS), "a table of constants"),
    ):
        if value not in known:
            raise UserError(f"{what} is {' or '.join(known)}, got {value!r}{nearest(value, known)}", "see --help")


def _group_sizes(predictor: Predictor, found: Match, notes: list[str]) -> dict[str, int | None]:
    """Number of classes of each group that have images; None for all if the run does not know its counts."""
    card = predictor.card
    if card.counts is None:
        notes.append("the run does not know its class counts: no many, medium and few")
        return dict.fromkeys(GROUPS)
    group = groups(card.counts, card.many, card.few)
    return {name: int(((group == name) & found.there).sum()) for name in GROUPS}


def _baseline(
    baseline: Path | str | None,
    source: Source,
    found: Match,
    predictor: Predictor,
    which: str,
    notes: list[str],
) -> Errors | Predictor | None:
    """What to compare with: AlexNet's errors, a model that is still to be measured, or nothing."""
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
            notes.append("AlexNet's errors are of the published files of ImageNet-C, not of images corrupted here")
        return Errors({}, [], "AlexNet", by_group=False, published=ALEXNET, published_clean=ALEXNET_CLEAN)
    other = load_classifier(as_run(baseline), which=which, device=predictor.mean.device)
    if other.classes != predictor.classes:
        raise UserError(f"{baseline} does not have the same classes", "choose a baseline trained on the same classes")
    if other.card.size != predictor.card.size:
        notes.append(f"the baseline sees images of {other.card.size} pixels, the run {predictor.card.size}")
    if other.card.counts != predictor.card.counts:
        notes.append("the baseline was trained on other class counts: no mce by group")
    return other


def _workers(workers: int | None) -> int:
    if workers is not None:
        if workers < 0:
            raise UserError(f"{workers} processes cannot load images", "--workers 2, or 0 for none beside this one")
        return workers
    affinity = getattr(os, "sched_getaffinity", None)
    return min(len(affinity(0)) if affinity else os.cpu_count() or 1, 8)
