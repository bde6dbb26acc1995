"""Robustness of a classifier: errors on corrupted images and published sets, by corruption, severity and group."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpaco.data.class_maps import is_imagenet
from gpaco.data.corruption.corruptions import VERSION
from gpaco.data.corruption.images import Images, Source
from gpaco.data.corruption.published import CLEAN, Condition, Tree
from gpaco.data.samples import hash_of_rows
from gpaco.errors import UserError
from gpaco.metrics.corruption import ALEXNET, ALEXNET_CLEAN, Errors, group_errors, summary
from gpaco.metrics.groups import GROUPS, groups
from gpaco.system import distributed
from gpaco.system.prefetch import usable_cpus
from gpaco.tasks.classification import robustness_data
from gpaco.tasks.classification.answers import answers_under
from gpaco.tasks.classification.card import Card
from gpaco.tasks.classification.class_match import Match, restricted
from gpaco.tasks.classification.logits import check_finite, wanted_prior
from gpaco.tasks.classification.predictor import Predictor, load_classifier
from gpaco.tasks.classification.priors import check_correction, final_logits
from gpaco.tasks.robustness import RobustnessSettings, Row, begin_output, check_frost, complete, place_of, write_result
from gpaco.training.run import Run, as_run

_WORTH_WORKERS = 2000  # fewer images are loaded faster than other processes start


def measure_robustness(settings: RobustnessSettings) -> dict[str, Any]:
    """Return the result of `gpaco.robustness`."""
    run, say, baseline = settings.run, settings.say, settings.baseline
    predictor = load_classifier(run, device=settings.device)
    check_correction(predictor.card, settings.prior, settings.unbiased)
    others = [] if baseline is None or str(baseline) == "alexnet" else [as_run(baseline)]
    with settings.bar("reading folders") as progress:
        source, stem = robustness_data.source_of(settings, predictor, others, progress)
    found = robustness_data.matched_classes(source, predictor.classes)
    notes = found.notes(predictor.classes)
    conditions = robustness_data.conditions_of(settings, source, notes)
    parts = [robustness_data.part_of(settings, settings.source, source, found, conditions)]
    if isinstance(source, Images):
        check_frost(conditions)
        if settings.clean is not None:
            raise UserError("--clean is only for published sets of corrupted images", "leave out --clean")
    elif settings.clean is not None:
        parts.append(robustness_data.clean_part(settings, predictor.classes, found))
    other = _baseline(settings, source, found, predictor, notes)

    begin_output(settings)
    settings = replace(settings, restrict=settings.restrict or source.reader in ("imagenet-r", "imagenet-a"))
    tested = sum(condition != CLEAN for condition in conditions)
    say(f"{len(parts[0].indices):,} images ({source.reader}), {tested} conditions")
    mine = _measure(settings, parts, run, predictor)
    if isinstance(other, Predictor):
        say(f"the baseline, {baseline}:")
        same = _groups_of(other.card) == _groups_of(predictor.card)
        other = replace(_measure(settings, parts, others[0], other), name=str(baseline), by_group=same)

    cuts = {"many": predictor.card.many, "few": predictor.card.few}
    result = summary(mine, other, _group_sizes(predictor.card, found, notes), cuts, conditions, notes)
    result |= {
        "run": str(run.folder),
        "data": settings.source,
        "set": source.reader,
        "n": len(parts[0].indices),
        "subset": settings.subset,
        "seed": settings.seed,
        "constants": _constants(source),
        "preprocessing": settings.preprocessing,
        "overlap": found.facts(settings.restrict),
        "prior": settings.prior,
        "unbiased": settings.unbiased,
    }
    write_result(settings, stem, result)
    return result


def _measure(settings: RobustnessSettings, parts: Sequence[robustness_data.Part], run: Run, model: Predictor) -> Errors:
    """Return the errors of a model under every condition, from the log if possible."""
    result, skip, prior = Errors({}, []), settings.on_bad_image == "skip", settings.prior
    for part in parts:
        part = replace(part, source=robustness_data.for_model(part.source, model))
        names, labels = part.source.names, part.source.labels
        arguments = {  # everything that an error depends on, except the model and the condition
            "version": VERSION,
            "data": place_of(part.data),
            "set": part.source.reader,
            "images": hash_of_rows((names[i], part.source.classes[labels[i]]) for i in part.indices),
            "subset": settings.subset,
            "seed": settings.seed,
            "constants": _constants(part.source),
            "preprocessing": settings.preprocessing,
            "restrict": settings.restrict,
            "prior": None if prior is None else wanted_prior(prior, model.classes, model.card.counts).tolist(),
            "unbiased": settings.unbiased,
            "tuned": asdict(model.card.tuned) if model.card.tuned else None,
            "calibration": asdict(model.card.calibration) if model.card.calibration else None,
        }
        compute = partial(_rows, settings, part, model)
        rows = complete(settings, run, arguments, part.conditions, compute, lambda row: skip or not row["skipped"])
        result.rows.update(rows)
        for (name, severity), row in rows.items():
            result.skipped.extend(f"{name} {severity}: {image}: {reason}" for image, reason in row["skipped"])
    return result


def _rows(
    settings: RobustnessSettings, part: robustness_data.Part, model: Predictor, conditions: Sequence[Condition]
) -> Iterator[tuple[Condition, Row]]:
    """Yield the errors of a model under each condition."""
    card, labels, device = model.card, part.match.labels[part.indices], model.mean.device
    few = len(conditions) * len(part.indices) < _WORTH_WORKERS
    there = part.match.there if settings.restrict else None
    choose = partial(_choose, card=card, there=there, prior=settings.prior, unbiased=settings.unbiased)
    with settings.bar("robustness") as progress:
        for condition, classes, bad in answers_under(
            model,
            part.source,
            conditions,
            part.indices[distributed.rank() :: distributed.world_size()],
            robustness_data.view_for(part.source, model, settings.preprocessing),
            choose,
            skip=settings.on_bad_image == "skip",
            workers=0 if few else usable_cpus() if settings.workers is None else settings.workers,
            progress=progress,
        ):
            classes = distributed.in_order(torch.from_numpy(classes).to(device), len(labels)).cpu().numpy()
            bad = sorted(distributed.collect(bad))
            good = classes >= 0
            if not good.any():
                raise UserError(f"no image under {condition[0]} {condition[1]} could be read", "check the files")
            row = group_errors(classes[good], labels[good], card.counts, card.many, card.few)
            yield condition, row | {"skipped": [[part.source.names[i], reason] for i, reason in bad]}


def _choose(
    logits: NDArray[np.float32], card: Card, there: NDArray[np.bool_] | None, prior: str | None, unbiased: bool
) -> NDArray[np.int64]:
    """Return the predicted classes (N,) from logits (N, C); with `there`, only these classes."""
    logits = final_logits(logits, card, prior=prior, unbiased=unbiased)
    check_finite(logits)
    return np.asarray((logits if there is None else restricted(logits, there)).argmax(1))


def _constants(source: Source) -> str | None:
    return source.corrupting.constants if isinstance(source, Images) and source.corrupting else None


def _group_sizes(card: Card, found: Match, notes: list[str]) -> dict[str, int | None]:
    """Return the number of classes with images in each group; None if class counts are unknown."""
    if card.counts is None:
        notes.append("the run does not have class counts, so there are no groups (many, medium, few)")
        return dict.fromkeys(GROUPS)
    group = groups(card.counts, card.many, card.few)
    return {name: int(((group == name) & found.there).sum()) for name in GROUPS}


def _baseline(
    settings: RobustnessSettings, source: Source, found: Match, predictor: Predictor, notes: list[str]
) -> Errors | Predictor | None:
    """Return what to compare with: the errors of AlexNet, a model that is yet to be measured, or None."""
    baseline = settings.baseline
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
                "AlexNet's errors are known only for the 1,000 classes of ImageNet",
                "give one of your runs: --baseline RUN",
            )
        if not isinstance(source, Tree):
            notes.append("AlexNet's errors are for the published files of ImageNet-C, not for images corrupted here")
        return Errors({CLEAN: {"error": ALEXNET_CLEAN}}, [], "AlexNet", by_group=False, published=ALEXNET)
    other = load_classifier(as_run(baseline), device=settings.device)
    if other.classes != predictor.classes:
        raise UserError(f"{baseline} does not have the same classes", "choose a baseline trained on the same classes")
    try:
        check_correction(other.card, settings.prior, settings.unbiased)
    except UserError as error:
        raise UserError(f"the baseline, {baseline}: {error.cause}", error.remedy) from None
    if other.card.size != predictor.card.size:
        notes.append(f"the baseline uses images of {other.card.size} pixels, the run {predictor.card.size}")
    if _groups_of(other.card) != _groups_of(predictor.card):
        notes.append("the baseline has other class counts or limits of many and few, so there is no mce by group")
    return other


def _groups_of(card: Card) -> tuple[Any, ...]:
    return card.counts, card.many, card.few
