"""robustness() of a segmenter: 1 - mIoU on corrupted pictures, by corruption, severity and group of classes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpaco.data.corruption.corruptions import CORRUPTIONS, VERSION, chosen, constants_for, corrupt
from gpaco.data.corruption.distortions import frost_folder
from gpaco.data.corruption.images import CLEAN, corrupted
from gpaco.data.corruption.published import Condition
from gpaco.data.counter_random import permutation
from gpaco.errors import UserError
from gpaco.metrics.classification import GROUPS
from gpaco.metrics.robustness import Bar, Measured, missing_conditions, summary, write_result
from gpaco.metrics.segmentation import share_groups
from gpaco.system.progress import Say
from gpaco.tasks.known_conditions import KnownConditions, Row, model_digest
from gpaco.tasks.segmentation.evaluation import Pixels, evaluate_scenes, evaluation_part
from gpaco.tasks.segmentation.predictor import ScenePredictor, load_segmenter
from gpaco.tasks.segmentation.scenes import Scenes
from gpaco.training.run import Run, as_run


def scene_robustness(
    run: Run,
    data: Path | str | None,
    *,
    baseline: Path | str | None,
    corruptions: str | None,
    severities: Sequence[int],
    subset: int | None,
    seed: int,
    constants: str | None,
    which: str,
    device: torch.device,
    folder: Path,
    say: Say,
    bar: Bar,
) -> dict[str, Any]:
    """What `gpaco.robustness` returns for a run that segments. Images are corrupted at their own size."""
    predictor = load_segmenter(run, which=which, device=device)
    part, whole = evaluation_part(run, data, predictor.classes, say)
    numbers = np.sort(permutation(seed, 0, len(whole))[:subset])
    if not len(numbers) or (subset is not None and subset < 1):
        raise UserError(f"a subset of {subset} images is none", "--subset 100 is usual")
    scenes = whole.subset(numbers)
    names = chosen(corruptions)
    conditions = [CLEAN, *((name, severity) for name in CORRUPTIONS if name in names for severity in severities)]
    notes = missing_conditions(conditions)
    if "frost" in names:
        frost_folder()  # an error now rather than in the middle
    table = constants or constants_for(min(scenes.load_image(0).shape[:2]))
    folder.mkdir(parents=True, exist_ok=True)
    say(f"{len(scenes):,} images, {len(conditions) - 1} conditions")
    place = str(data) if data is not None else run.recipe.data.path
    arguments = {"version": VERSION, "data": place, "subset": subset, "seed": seed, "constants": table}
    arguments["images"] = len(scenes)

    def measured(own: Run, model: ScenePredictor) -> Measured:
        known = KnownConditions(folder / "robustness.jsonl", model_digest(own, which), arguments)
        test = _Test(model, scenes, numbers, seed, table, bar)
        return Measured(known.complete(conditions, test.rows, say), [])

    other = None
    if baseline is not None:
        one = load_segmenter(as_run(baseline), which=which, device=device)
        if one.classes != predictor.classes:
            raise UserError(f"{baseline} does not have the same classes", "choose a baseline trained on the same ones")
        say(f"the baseline, {baseline}:")
        alike = one.card.counts == predictor.card.counts
        other = replace(measured(as_run(baseline), one), name=str(baseline), by_group=alike)
        say("the run:")
    else:
        notes.append("mce and relative_mce need a baseline: --baseline RUN")
    card = predictor.card
    group = share_groups(card.counts, card.many, card.few)
    sizes = {name: int((group == name).sum()) for name in GROUPS}
    cuts = {"many": card.many, "few": card.few}
    result = summary(measured(run, predictor), other, sizes, cuts, conditions, notes) | {
        "measure": "1 - mIoU",
        "run": str(run.folder),
        "data": place,
        "set": "corrupted here",
        "evaluated_on": part,
        "n": len(scenes),
        "subset": subset,
        "seed": seed,
        "constants": table,
        "prior": None,
        "unbiased": False,
    }
    write_result(folder, Path(data).resolve().stem if data is not None else "", result, say)
    return result


@dataclass(frozen=True, eq=False)
class _Test:
    """A model and the images to test it on.

    `numbers` are those of the images in the whole set: each is corrupted alike in every subset.
    """

    model: ScenePredictor
    scenes: Scenes
    numbers: NDArray[np.int64]
    seed: int
    constants: str
    bar: Bar

    def rows(self, conditions: Sequence[Condition]) -> Iterator[tuple[Condition, Row]]:
        """The errors under each condition."""
        with self.bar("robustness") as show:
            for done, condition in enumerate(conditions):
                change = _Change(condition, self.numbers, self.seed, self.constants)
                result = evaluate_scenes(
                    self.model, self.scenes, change=change, show=_part_of_bar(show, done, len(conditions))
                )
                # A group of classes that no mask has would get an IoU from mistakes alone.
                there = {row["group"] for row in result["per_class"] if row["test"]}
                lost = {name: _lost(result[name]) if name in there else None for name in GROUPS}
                yield condition, {"n": len(self.scenes), "error": _lost(result["miou"]), **lost}


@dataclass(frozen=True, eq=False)
class _Change:
    """Corrupts image i of a test."""

    condition: Condition
    numbers: NDArray[np.int64]
    seed: int
    constants: str

    def __call__(self, image: Pixels, i: int) -> Pixels:
        if self.condition == CLEAN:
            return image
        return corrupted(image, lambda one: self._corrupt(one, int(self.numbers[i])))

    def _corrupt(self, image: Pixels, index: int) -> Pixels:
        name, severity = self.condition
        return corrupt(image, name, severity, seed=self.seed, index=index, constants=self.constants)


def _lost(iou: float | None) -> float | None:
    return None if iou is None else 1 - iou


def _part_of_bar(show: Callable[[int, int], None], done: int, parts: int) -> Callable[[int, int], None]:
    """Progress of one of several equal parts, as progress of the whole."""
    return lambda now, total: show(done * total + now, parts * total)
