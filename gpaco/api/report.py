"""The report: one offline page about one or more runs, with its numbers in files beside it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from gpaco.data.samples import Splits
from gpaco.errors import UserError
from gpaco.pages import segmentation
from gpaco.pages.classification import page as classification
from gpaco.pages.progress import write_progress
from gpaco.pages.render import FOLDER_MARK, MARK, folder_of
from gpaco.system.outputs import output_file, output_folder
from gpaco.system.progress import Say, quiet
from gpaco.system.words import plural
from gpaco.tasks.segmentation.scenes import SceneSplits
from gpaco.training.run import Runs, of_one_task

PAGES: dict[str, Callable[..., Path]] = {
    "classification": classification.write_page,
    "segmentation": segmentation.write_page,
}


def report(
    runs: Runs,
    out: Path | str = "report.html",
    *,
    names: Sequence[str] | None = None,
    with_images: bool = True,
    splits: Splits | SceneSplits | None = None,
    say: Say = quiet,
) -> Path:
    """Write a page about runs with the same task and classes, and return its path.

    While a run is still training, the page shows its curves so far. The numbers of `report.html` are in the folder
    `report_files` beside it.

    Args:
        names: names of the runs on the page; by default, the parts of their paths that differ.
        with_images: show images of the data, if it is still available.
        splits: the data of the runs, if you have already read it.

    >>> report(["runs/first", "runs/second"], "report.html").name
    'report.html'
    """
    several = of_one_task(runs)
    if names is not None and len(names) != len(several):
        raise UserError(f"{plural(len(several), 'run')} but {plural(len(names), 'name')}", "give each run one name")
    data = [place for run in several for place in run.recipe.data.places]
    page = output_file(out, dict.fromkeys((".html", ".htm"), MARK), data)
    output_folder(folder_of(page), FOLDER_MARK, data=data)
    for run in several:
        run.check_evaluated()
    if any(not (run.folder / "metrics.json").is_file() for run in several):
        return write_progress(several, page, names)
    page_of = PAGES[several[0].recipe.train.task]
    return page_of(several, page, names=names, with_images=with_images, splits=splits, say=say)
