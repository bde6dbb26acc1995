"""Shared by all pages: templates, numbers as text, CSV files and thumbnails."""

import base64
import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpaco import __version__
from gpaco.system.files import write_atomic
from gpaco.system.outputs import mark_folder

MARK, FOLDER_MARK = '<meta name="generator" content="gpaco report">', ".gpaco-report"  # of a page and of its folder
PROGRESS_MARK = '<meta name="gpaco" content="training so far">'  # of a page that the finished run replaces
Facts = dict[str, Any]  # what a page shows, ready for JSON
Table = tuple[Sequence[str], Iterable[Sequence[Any]]]  # header and rows


def folder_of(page: Path) -> Path:
    """Return the folder for the numbers of a page: `report_files` beside `report.html`."""
    return page.with_name(f"{page.stem}_files")


def write_files(page: Path, template: str, tables: Mapping[str, Table], **facts: Any) -> Path:
    """Write the tables as CSV files to the folder beside the page, then the page; return its path."""
    folder = folder_of(page)
    mark_folder(folder, FOLDER_MARK)
    (folder / "epochs.csv").unlink(missing_ok=True)  # of the page about training progress
    for name, (header, rows) in tables.items():
        file = io.StringIO(newline="")
        csv.writer(file).writerows([header, *rows])
        write_atomic(folder / f"{name}.csv", file.getvalue().encode("utf-8", "backslashreplace"))
    return write_html(page, template, folder=folder.name, **facts)


def write_html(page: Path, template: str, **facts: Any) -> Path:
    """Write a page from its template and facts, and return its path."""
    write_atomic(page, rendered(template, facts).encode("utf-8", "backslashreplace"))
    return page


def rendered(template: str, facts: Facts) -> str:
    """Fill a template with facts."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("gpaco.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "points": points, "number": "{:,}".format}
    environment.filters["part"] = lambda name: {"train": "training", "val": "validation"}.get(name, name)
    facts = {"mark": MARK, "style": template_text("page.css"), "version": __version__} | facts
    return environment.get_template(template).render(facts)


def template_text(name: str) -> str:
    """Return the text of a file in the templates folder."""
    return (files("gpaco.pages") / "templates" / name).read_text(encoding="utf-8")


def page_script(names: Sequence[str]) -> Facts:
    """Return the script of a page, and its hash: the page lets no other script run."""
    script = "".join(map(template_text, names))
    return {"script": script, "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}


def safe_json(data: Facts) -> str:
    """Return JSON for a script element: ASCII, without characters that could end the element or start a comment.

    >>> safe_json({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def percent(value: float | None, digits: int = 1) -> str:
    """Return a rate as a percentage, rounding half up as browsers do.

    >>> percent(0.12345), percent(0.1225), percent(None)
    ('12.3', '12.3', 'none')
    """
    if value is None:
        return "none"
    return str(Decimal(100 * value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def points(value: float | None) -> str:
    """Return a difference of rates in percentage points, with its sign."""
    if value is None:
        return "none"
    text = percent(abs(value))
    return ("\u2212" if value < 0 and text != "0.0" else "+") + text


def thumbnail(image: NDArray[np.uint8], side: int, quality: int) -> str:
    """Return an image (H, W, 3) as a data URI: a JPEG of at most `side` pixels, or a PNG if it is tiny."""
    from PIL import Image

    small = Image.fromarray(image)
    tiny = max(small.size) <= 32
    small.thumbnail((side, side))
    file = io.BytesIO()
    small.save(file, "PNG" if tiny else "JPEG", **({"optimize": True} if tiny else {"quality": quality}))
    return f"data:image/{'png' if tiny else 'jpeg'};base64,{base64.b64encode(file.getvalue()).decode()}"
