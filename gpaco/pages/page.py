"""The tail report: one offline page about one or more runs, and its numbers as CSV files beside it."""

import base64
import csv
import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gpaco import __version__
from gpaco.data.samples import Splits
from gpaco.errors import UserError
from gpaco.files import write_atomic
from gpaco.pages.collecting import collect, data_of
from gpaco.pages.evidence import Facts, gather
from gpaco.pages.tables import tables
from gpaco.progress import Say
from gpaco.run import Runs, as_runs

SCRIPTS = ("charts.js", "classes.js", "errors.js", "whatif.js", "corruptions.js", "theory.js", "page.js")


def report(
    runs: Runs,
    out: Path | str = "report.html",
    *,
    names: Sequence[str] | None = None,
    figures: bool = False,
    with_pictures: bool = True,
    splits: Splits | None = None,
    say: Say = lambda line: None,
) -> Path:
    """Write the page about these runs, which must have the same classes, and its CSV files; returns where the page is.

    The numbers of `report.html` are in the folder `report` beside it, with `figures` also its charts as SVG and PNG.

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
        from gpaco.pages.scenes import report_scenes

        if figures:
            raise UserError("the page about segmenters has no figures for papers", "leave out --figures")
        return report_scenes(several, page, names=names, with_pictures=with_pictures, say=say)
    found = gather(several, names)
    data = collect(found, data_of(found, splits, say) if with_pictures else [])
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for name, (header, rows) in tables(data).items():
        write_atomic(folder / f"{name}.csv", _csv(header, rows))
    if figures:
        from gpaco.pages.figures import draw

        say("drawing figures")
        draw(data, folder)
    write_atomic(page, render(data, folder.name))
    return page


def render(data: Facts, folder: str) -> str:
    """The page as text. Everything from data is escaped, and no script but ours can run in it."""
    environment = Environment(
        loader=PackageLoader("gpaco.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "points": points}
    templates = files("gpaco.pages") / "templates"
    script = "".join((templates / name).read_text(encoding="utf-8") for name in SCRIPTS)
    page = environment.get_template("report.html").render(
        data=data,
        folder=folder,
        version=__version__,
        style=(templates / "report.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        json=safe_json(data),
    )
    return page.encode("utf-8", "backslashreplace").decode()


def safe_json(data: Facts) -> str:
    """JSON for a script element: ASCII, and no character that could end the element or begin a comment.

    >>> safe_json({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def percent(value: float | None, digits: int = 1) -> str:
    """A rate as percent; half is rounded up, as browsers do.

    >>> percent(0.12345), percent(0.1225), percent(None)
    ('12.3', '12.3', 'none')
    """
    if value is None:
        return "none"
    return str(Decimal(100 * value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def points(value: float | None) -> str:
    """A difference of rates with its sign."""
    if value is None:
        return "none"
    text = percent(abs(value))
    return ("\u2212" if value < 0 and text != "0.0" else "+") + text


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(header)
    writer.writerows(rows)
    return file.getvalue().encode("utf-8", "backslashreplace")
