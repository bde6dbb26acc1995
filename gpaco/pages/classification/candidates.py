"""The page of `gpaco mine`: thumbnails of the images to label next, by class."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpaco.data.images import read_image
from gpaco.data.members import File
from gpaco.errors import Problem
from gpaco.pages.render import thumbnail, write_html

MARK = '<meta name="generator" content="gpaco mine">'  # of the page
SIDE, QUALITY = 160, 75  # pixels of the longer side at most; JPEG quality


def write_candidates(
    page: Path,
    rows: Sequence[Mapping[str, Any]],
    files: Mapping[str, File],
    counts: Mapping[str, int],
    *,
    run: str,
    pool: int,
) -> Path:
    """Write the page about the rows of `gpaco.mine`.

    Args:
        files: the file of each path in the rows.
        counts: training images by class; empty if unknown.
        pool: number of images that the candidates were chosen from.
    """
    by_class: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_class.setdefault(row["class"], []).append({**row, "thumbnail": _thumbnail(files[row["path"]])})
    groups = [{"name": name, "train": counts.get(name), "rows": own} for name, own in by_class.items()]
    return write_html(page, "candidates.html", mark=MARK, run=run, pool=pool, number=len(rows), groups=groups)


def _thumbnail(file: File) -> str:
    try:
        return thumbnail(read_image(file, SIDE), SIDE, QUALITY)
    except Problem:  # it has disappeared since
        return ""
