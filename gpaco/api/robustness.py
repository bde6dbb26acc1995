"""robustness(): errors on corrupted images and on published test sets, for both tasks."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from gpaco.data.corruption.corruptions import CONSTANTS, SEVERITIES
from gpaco.errors import UserError, nearest
from gpaco.system import distributed
from gpaco.system.outputs import output_folder
from gpaco.system.progress import Bar, Say, quiet
from gpaco.system.words import with_commas
from gpaco.tasks.classification import robustness as classification
from gpaco.tasks.robustness import MARK, RobustnessSettings
from gpaco.tasks.segmentation import robustness as segmentation
from gpaco.training.run import RECIPE, Run, as_run

MEASURES = {"classification": classification.measure_robustness, "segmentation": segmentation.measure_robustness}


def robustness(
    run: Run | Path | str,
    data: Path | str | None = None,
    *,
    baseline: Path | str | None = None,
    clean: Path | str | None = None,
    corruptions: str | Sequence[str] | None = None,
    severities: str | int | Sequence[int] | None = None,
    subset: int | None = None,
    seed: int = 0,
    constants: str | None = None,
    preprocessing: str = "official",
    restrict: bool = False,
    prior: str | None = None,
    unbiased: bool = False,
    on_bad_image: str = "error",
    workers: int | None = None,
    device: str | None = None,
    out: Path | str | None = None,
    say: Say = quiet,
    bar: Bar | None = None,
) -> dict[str, Any]:
    """Return the errors of a run by corruption, severity and group, and their means (docs/robustness.md has every key).

    The same call resumes where it stopped: conditions in the log are not computed again.

    Args:
        run: a run. For a segmenter, the error is 1 - mIoU.
        data: labeled images to corrupt; or ImageNet-C, CIFAR-10-C or -100-C as published; or ImageNet-R, -A, -V2 or
            -Sketch, which are used as they are. By default the test data of the run.
        baseline: another run, or "alexnet" (ImageNet only), for `mce` and `relative_mce`.
        clean: the clean images of a published corrupted set.
        corruptions, severities: a list, or text with commas; all by default.
        subset: use about this many images, with all classes in proportion, selected by `seed`.
        seed: seed of the corruptions, which differ for each image, and of the subset.
        constants: "imagenet" or "cifar"; by default chosen by the size of the images.
        preprocessing: "official", or "paper" (resize to 256 and crop 224 even if images have 224 pixels).
        restrict: predict only classes of the data; always on for ImageNet-R and -A.
        prior, unbiased: as for `evaluate`.
        on_bad_image: "error", or "skip" to leave out unreadable images and list them.
        workers: processes that load images; by default one per core, at most 8.
        out: folder for `robustness*.json` and `robustness.jsonl`; by default that of the run.

    >>> found = robustness("runs/first", corruptions="fog,contrast", severities="1,5", subset=20)
    >>> sorted(found["corruptions"])
    ['contrast', 'fog']
    """
    options = dict(locals())
    for value, known, what in (
        (preprocessing, ("official", "paper"), "preprocessing"),
        (on_bad_image, ("error", "skip"), "on_bad_image"),
        (constants or "cifar", tuple(CONSTANTS), "constants"),
    ):
        if value not in known:
            raise UserError(f"{what} is {value!r}{nearest(value, known)}", f"choose {' or '.join(known)}")
    if workers is not None and workers < 0:
        raise UserError(f"workers must be 0 or more, got {workers}", "--workers 2, or 0 to load images in this process")
    run, where = as_run(run), distributed.choose_device(device)
    distributed.start(where, run.recipe.train.timeout)
    labeled = [*run.recipe.data.places, data, clean]
    options |= {
        "run": run,
        "corruptions": with_commas(corruptions),
        "severities": parse_severities(with_commas(severities)),
        "device": where,
        "out": output_folder(run.folder if out is None else out, RECIPE, MARK, data=labeled),
        "bar": bar or (lambda title: nullcontext(lambda done, total: None)),
    }
    return MEASURES[run.recipe.train.task](RobustnessSettings(**options))


def parse_severities(text: str | None) -> tuple[int, ...]:
    """Return severities in order, without repetition; all five by default."""
    if text is None:
        return SEVERITIES
    parts = [part.strip() for part in text.split(",")]
    if not all(part in map(str, SEVERITIES) for part in parts):
        raise UserError(f"severities are 1 to 5, got {text!r}", "for example --severities 1,3,5")
    return tuple(sorted(set(map(int, parts))))
