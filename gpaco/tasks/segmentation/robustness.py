"""Robustness of a segmenter: 1 - mIoU on corrupted images, by corruption, severity and group of classes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpaco.data.corruption.corruptions import CORRUPTIONS, VERSION, constants_for, corrupt, corruption_names
from gpaco.data.corruption.images import corrupted
from gpaco.data.corruption.published import CLEAN, Condition
from gpaco.data.counter_random import permutation
from gpaco.errors import UserError
from gpaco.metrics.corruption import Errors, missing_conditions, summary
from gpaco.metrics.groups import GROUPS
from gpaco.metrics.segmentation import share_groups
from gpaco.tasks.robustness import RobustnessSettings, Row, begin_output, check_frost, complete, place_of, write_result
from gpaco.tasks.segmentation.evaluation import Pixels, evaluate_scenes, evaluation_part
from gpaco.tasks.segmentation.predictor import ScenePredictor, load_segmenter
from gpaco.tasks.segmentation.scenes import Scenes
from gpaco.training.run import Run, as_run


def measure_robustness(settings: RobustnessSettings) -> dict[str, Any]:
    """Return the result of `gpaco.robustness`. Images are corrupted at their own size."""
    check_options(settings)
    run, subset, say = settings.run, settings.subset, settings.say
    predictor = load_segmenter(run, device=settings.device)
    others = [] if settings.baseline is None else [as_run(settings.baseline)]
    part, whole = evaluation_part(run, settings.data, predictor.classes, others=others, say=say)
    numbers = np.sort(permutation(settings.seed, 0, len(whole))[:subset])
    if not len(numbers) or (subset is not None and subset < 1):
        raise UserError(f"a subset needs at least 1 image, got {subset}", "for example --subset 100")
    scenes = whole.subset(numbers)
    names = corruption_names(settings.corruptions)
    conditions = [CLEAN, *((name, level) for name in CORRUPTIONS if name in names for level in settings.severities)]
    notes = missing_conditions(conditions)
    check_frost(conditions)
    constants = settings.constants or constants_for(min(whole.load_image(0).shape[:2]))
    begin_output(settings)
    say(f"{len(scenes):,} images, {len(conditions) - 1} conditions")
    facts = {"data": settings.source, "subset": subset, "seed": settings.seed, "constants": constants}

    def measure(run: Run, model: ScenePredictor) -> Errors:
        images = {"data": place_of(settings.source), "images": scenes.list_hash}
        arguments = facts | images | {"version": VERSION}
        measured = partial(_rows, settings, scenes, numbers, constants, model)
        return Errors(complete(settings, run, arguments, conditions, measured), [])

    baseline, card = None, predictor.card
    if others:
        other = load_segmenter(others[0], device=settings.device)
        if other.classes != predictor.classes:
            raise UserError(
                f"{settings.baseline} does not have the same classes", "choose a baseline trained on the same classes"
            )
        say(f"the baseline, {settings.baseline}:")
        same = all(getattr(other.card, key) == getattr(card, key) for key in ("counts", "many", "few"))
        if not same:
            notes.append("the baseline has other class counts or limits of many and few, so there is no mce by group")
        baseline = replace(measure(others[0], other), name=str(settings.baseline), by_group=same)
        say("the run:")
    else:
        notes.append("mce and relative_mce need a baseline: --baseline RUN")
    group = share_groups(card.counts, card.many, card.few)
    sizes = {name: int((group == name).sum()) for name in GROUPS}
    cuts = {"many": card.many, "few": card.few}
    result = summary(measure(run, predictor), baseline, sizes, cuts, conditions, notes) | {
        "measure": "1 - mIoU",
        "run": str(run.folder),
        "set": "corrupted here",
        "evaluated_on": part,
        "n": len(scenes),
        **facts,
        "prior": None,
        "unbiased": False,
    }
    write_result(settings, "" if settings.data is None else Path(settings.data).resolve().name, result)
    return result


def check_options(settings: RobustnessSettings) -> None:
    """Raise an error for an option that only classifiers have."""
    given = settings.clean or settings.restrict or settings.prior or settings.unbiased or settings.workers is not None
    if given or settings.preprocessing != "official" or settings.on_bad_image != "error":
        raise UserError(
            "for a segmenter, robustness does not support --clean, --restrict, --prior, --unbiased, --on-bad-image, "
            "--workers or preprocessing",
            "leave them out",
        )


def _rows(
    settings: RobustnessSettings,
    scenes: Scenes,
    numbers: NDArray[np.int64],
    constants: str,
    model: ScenePredictor,
    conditions: Sequence[Condition],
) -> Iterator[tuple[Condition, Row]]:
    """Yield the errors of a model under each condition.

    `numbers` are the indices of the scenes in the whole set, so that an image is corrupted the same way in any subset.
    """

    def change(condition: Condition, image: Pixels, i: int) -> Pixels:
        if condition == CLEAN:
            return image
        how: dict[str, Any] = {"seed": settings.seed, "index": int(numbers[i]), "constants": constants}
        return corrupted(image, lambda one: corrupt(one, *condition, **how))

    with settings.bar("robustness") as progress:
        for done, condition in enumerate(conditions):

            def whole(now: int, total: int, done: int = done) -> None:
                progress(done * total + now, len(conditions) * total)

            result = evaluate_scenes(model, scenes, change=partial(change, condition), progress=whole)
            # The IoU of a group whose classes are in no mask would reflect only false positives.
            there = {row["group"] for row in result["per_class"] if row["test"]}
            found = {"error": result["miou"]} | {name: result[name] if name in there else None for name in GROUPS}
            lost = {key: None if iou is None else 1 - iou for key, iou in found.items()}
            yield condition, {"n": len(scenes), **lost}
