"""What both pages share: the Jinja environment, numbers as text, CSV files and thumbnails."""

import base64
import csv
import io
import json
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from gpaco import __version__


def render(template: str, **facts: Any) -> str:
    """Return the page as text, with the style sheet inside. Everything from data is escaped."""
    environment = Environment(
        loader=PackageLoader("gpaco.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "points": points}
    page = environment.get_template(template).render(facts, style=template_text("report.css"), version=__version__)
    return page.encode("utf-8", "backslashreplace").decode()


def template_text(name: str) -> str:
    """Return a file of the templates folder as it is."""
    return (files("gpaco.pages") / "templates" / name).read_text(encoding="utf-8")


def safe_json(data: dict[str, Any]) -> str:
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


def csv_file(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Return the content of a CSV file."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(header)
    writer.writerows(rows)
    return file.getvalue().encode("utf-8", "backslashreplace")


def thumbnail(image: NDArray[np.uint8], side: int, quality: int) -> str:
    """Return an image (H, W, 3) as a data URI: JPEG of at most `side` pixels, or PNG as it is if it is tiny."""
    from PIL import Image

    picture = Image.fromarray(image)
    tiny = max(picture.size) <= 32
    picture.thumbnail((side, side))
    file = io.BytesIO()
    picture.save(file, "PNG" if tiny else "JPEG", **({"optimize": True} if tiny else {"quality": quality}))
    return f"data:image/{'png' if tiny else 'jpeg'};base64,{base64.b64encode(file.getvalue()).decode()}"
