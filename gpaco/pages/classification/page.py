"""The page about classifiers, and its numbers as CSV and JSON files beside it."""

from collections.abc import Sequence
from pathlib import Path

from gpaco.data.samples import Splits
from gpaco.pages.classification.evidence import gather
from gpaco.pages.classification.facts import collect
from gpaco.pages.classification.images import read_data
from gpaco.pages.classification.tables import tables
from gpaco.pages.render import folder_of, page_script, safe_json, write_files
from gpaco.system.files import write_atomic
from gpaco.system.progress import Say
from gpaco.training.run import Run

NO_IMAGES = "--no-images was given"
SCRIPTS = ("charts.js", "saving.js", "classes.js", "errors.js", "whatif.js", "corruptions.js", "theory.js", "page.js")


def write_page(
    runs: Sequence[Run], page: Path, *, names: Sequence[str] | None, with_images: bool, splits: Splits | None, say: Say
) -> Path:
    """Write the page about runs with the same classes; `splits` is their data, if already read."""
    found = gather(runs, names)
    data = collect(found, read_data(found, splits, say) if with_images else [NO_IMAGES] * len(found))
    text = safe_json(data)
    write_files(page, "classification.html", tables(data), data=data, json=text, **page_script(SCRIPTS))
    write_atomic(folder_of(page) / "report.json", text)
    return page
