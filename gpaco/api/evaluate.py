"""evaluate(): metrics of a run or an ensemble, on its own test data or on other data."""

import json
from pathlib import Path
from typing import Any

from gpaco.api.report import report
from gpaco.errors import UserError
from gpaco.pages.classification.page import NO_IMAGES
from gpaco.pages.render import folder_of
from gpaco.system import distributed
from gpaco.system.distributed import choose_device
from gpaco.system.files import write_atomic
from gpaco.system.outputs import labeled_places, output_file
from gpaco.system.progress import Progress, Say, no_progress, quiet
from gpaco.tasks.classification import evaluation as classification
from gpaco.tasks.classification.results import tune_prior as tune_run
from gpaco.tasks.segmentation import evaluation as segmentation
from gpaco.training.run import Run, Runs, of_one_task

MARKS = {".json": '"written_by": "gpaco evaluate"'}


def evaluate(
    runs: Runs,
    data: Path | str | None = None,
    *,
    root: Path | str | None = None,
    prior: str | None = None,
    unbiased: bool = False,
    tune_prior: bool = False,
    many: float | None = None,
    few: float | None = None,
    restrict: bool = False,
    which: str = "best",
    device: str | None = None,
    out: Path | str | None = None,
    progress: Progress = no_progress,
    say: Say = quiet,
    **how: Any,
) -> dict[str, Any]:
    """Return the metrics of a run, or of an ensemble of several (the mean of their logits).

    Other data is matched by class name. Images of classes that the model does not know are left out and listed as
    `overlap` in the result. Under torchrun, the processes share the work and all return the same metrics.

    Args:
        data: data to use instead of the run's test split; for a segmenter, a folder of images and masks.
        root: folder that the paths in a table or list are relative to; by default its own folder, or if they are not
            there, that of the run (data.root).
        prior: class distribution expected at test time: "uniform", "train" or a CSV file.
        unbiased: correct a model trained with the paper's prior for the bias of the loss against frequent classes.
        tune_prior: first select tau * log prior on the validation data of each run, and store it with the run.
        many: classes with more training images are "many"; for a segmenter, a multiple of the mean share of pixels.
        few: classes with fewer training images are "few".
        restrict: predict only classes that the data has.
        which: checkpoint, "best" or "last".
        out: file to write the metrics to, as JSON.
        how: `scales`, `flip`, `window` and `stride` of a segmenter (gpaco/tasks/segmentation/inference.py).

    >>> from tempfile import TemporaryDirectory
    >>> from gpaco import train
    >>> quick = {"method": "ce", "long_tail": 50, "epochs": 1, "report": False}
    >>> with TemporaryDirectory() as out:
    ...     run = train("digits", out=out, say=lambda line: None, **quick)
    ...     evaluate(run)["few"] == run.metrics["few"]  # of the rare classes in the run's own test data
    True
    """
    several = of_one_task(runs)
    labeled = [*labeled_places(data, root), *(place for run in several for place in run.recipe.data.places)]
    place = None if out is None else output_file(out, MARKS, labeled)
    where = choose_device(device)
    distributed.start(where, several[0].recipe.train.timeout)
    if distributed.rank():
        say, progress = quiet, no_progress
    if root is not None and data is None:
        raise UserError("--root is for a table or list, but none was given", "gpaco evaluate RUN LIST --root FOLDER")
    common: dict[str, Any] = {"many": many, "few": few, "which": which, "device": where}
    common |= {"progress": progress, "say": say}
    if several[0].recipe.train.task == "segmentation":
        if root is not None:
            raise UserError("--root is for tables and lists of images", "leave it out")
        if prior is not None or unbiased or tune_prior or restrict:
            raise UserError("--prior, --unbiased, --tune-prior and --restrict are for classifiers", "leave them out")
        result = segmentation.evaluate_runs(several, data, **common, **how)
    else:
        if how:
            raise UserError(
                f"a classifier does not support --{sorted(how)[0]}",
                "--scales, --flip and --window are for segmentation",
            )
        if tune_prior:
            if which != "best":
                raise UserError("--tune-prior needs the best checkpoint", "leave out --checkpoint")
            for run in several:
                tune_run(run, where, say, unbiased=unbiased, progress=progress)
                if distributed.rank() == 0:
                    _renew_page(run, say)
        result = classification.evaluate_runs(
            several, data, root=root, prior=prior, unbiased=unbiased, restrict=restrict, **common
        )
    if place is not None and distributed.rank() == 0:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(place, json.dumps({"written_by": "gpaco evaluate"} | result, indent=1))
    return result


def _renew_page(run: Run, say: Say) -> None:
    """Write the page of a run again, unless there is none or it is about several runs."""
    page = run.folder / "report.html"
    shown = folder_of(page) / "report.json"
    if page.exists() and shown.is_file():
        runs = json.loads(shown.read_text(encoding="utf-8"))["runs"]
        if len(runs) == 1:
            report(run, page, with_images=runs[0]["no_images"] != NO_IMAGES, say=say)
        else:
            say(f"{page} is about {len(runs)} runs and does not show the tuned prior; `gpaco report` rewrites it")
