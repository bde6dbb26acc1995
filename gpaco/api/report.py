"""The tail report: one offline page about one or more runs, and its numbers as CSV and JSON files beside it."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from gpaco.data.samples import Splits
from gpaco.errors import UserError
from gpaco.pages.classification.evidence import gather
from gpaco.pages.classification.facts import collect, data_of
from gpaco.pages.classification.tables import tables
from gpaco.pages.render import csv_file, render, safe_json, template_text
from gpaco.system.files import write_atomic
from gpaco.system.progress import Say
from gpaco.training.run import Runs, as_runs

SCRIPTS = ("charts.js", "saving.js", "classes.js", "errors.js", "whatif.js", "corruptions.js", "theory.js", "page.js")


def report(
    runs: Runs,
    out: Path | str = "report.html",
    *,
    names: Sequence[str] | None = None,
    with_pictures: bool = True,
    splits: Splits | None = None,
    say: Say = lambda line: None,
) -> Path:
    """Write the page about these runs, which must have the same classes, and its numbers; returns where the page is.

    The numbers of `report.html` are in the folder `report` beside it: some tables as CSV, all of them in `report.json`.

    Args:
        names: what to call the runs on the page; the ends of their folders unless given.
        with_pictures: show images of the data, if it is still there.
        splits: the data of the runs, if it has been read already.

    For example `gpaco.report(["runs/ce", "runs/gpaco"], "report.html")`.
    """
    page = Path(out)
    if page.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"the page cannot be called {page.name!r}", "give --out a name that ends in .html")
    several = as_runs(runs)
    tasks = {run.recipe.train.task for run in several}
    if len(tasks) > 1:
        raise UserError("these runs have different tasks", "make a page of classifiers and another of segmenters")
    if tasks == {"segmentation"}:
        from gpaco.pages.segmentation import report_scenes

        return report_scenes(several, page, names=names, with_pictures=with_pictures, say=say)
    found = gather(several, names)
    data = collect(found, data_of(found, splits, say) if with_pictures else [])
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for name, (header, rows) in tables(data).items():
        write_atomic(folder / f"{name}.csv", csv_file(header, rows))
    text = safe_json(data)
    write_atomic(folder / "report.json", text)
    script = "".join(map(template_text, SCRIPTS))
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()  # no other script can run in the page
    facts = {"data": data, "json": text, "folder": folder.name, "script": script, "script_hash": allowed}
    write_atomic(page, render("report.html", **facts))
    return page
