"""An exported ONNX file in use. Needs no torch, and so the commands import this file before any other."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpaco.data.files import find_files
from gpaco.errors import UserError
from gpaco.models.onnx_file import open_onnx
from gpaco.system.progress import Progress
from gpaco.tasks.classification.exported import answering_file
from gpaco.tasks.classification.rows import Answering, check_uncertain, output_table, predict_rows, table_writer
from gpaco.tasks.segmentation.exported import segmenting_file
from gpaco.tasks.segmentation.masks import Segmenting, output_masks, write_masks

IN_THE_FILE = "it is part of the file: give it to gpaco export"


def open_model(path: Path | str, prior: str | None = None) -> Answering | Segmenting:
    """Return the model in an ONNX file that `gpaco export` wrote."""
    file = open_onnx(Path(path))
    if file.about["task"] == "segmentation":
        if prior is not None:
            raise UserError("--prior is for classifiers", "leave it out")
        return segmenting_file(file)
    return answering_file(file, prior)


def predict_file(
    path: Path | str,
    paths: Path | str | Sequence[Path | str],
    *,
    out: Path | str | None = None,
    prior: str | None = None,
    unbiased: bool = False,
    top: int = 5,
    batch_size: int = 64,
    uncertain: float | None = None,
    device: str | None = None,
    show: Progress | None = None,
    **how: Any,
) -> list[dict[str, Any]]:
    """Return a row for each image, as `gpaco.predict` does for a run."""
    for option, given, remedy in (
        ("unbiased", unbiased, IN_THE_FILE),
        ("device", device, "leave it out: an exported file runs on the CPU"),
        *((name, True, "leave it out, or give the run instead of the file") for name in how),
    ):
        if given:
            raise UserError(f"an exported file has no {option}", remedy)
    check_uncertain(uncertain)
    paths = [paths] if isinstance(paths, Path | str) else paths
    model = open_model(path, prior)
    if isinstance(model, Segmenting):
        folder = None if out is None else output_masks(out)
        return write_masks(model, paths, folder=folder, uncertain=uncertain, show=show)
    place = None if out is None else output_table(out)
    files, rows = find_files(paths), []
    with table_writer(place, top, marked=uncertain is not None) as write:
        for row in predict_rows(model, files, top=top, batch_size=batch_size, uncertain=uncertain, show=show):
            rows.append(row)
            write(row)
    return rows
