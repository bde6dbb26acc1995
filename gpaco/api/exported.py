"""Predicting and serving with an exported ONNX file. Needs no torch: the commands use this module directly."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpaco.api.serving.answers import Model
from gpaco.api.serving.server import HOST, PORT, listen, serve_model
from gpaco.data.files import find_files
from gpaco.errors import UserError
from gpaco.models.onnx_file import open_onnx
from gpaco.system.progress import Progress, Say, no_progress
from gpaco.tasks.classification.exported import open_classifier
from gpaco.tasks.classification.rows import check_options, output_table, predict_rows
from gpaco.tasks.segmentation.exported import open_segmenter
from gpaco.tasks.segmentation.masks import ImageSegmenter, output_masks, write_masks


def open_model(
    path: Path | str, *, prior: str | None = None, unbiased: bool = False, device: str | None = None, **how: Any
) -> Model:
    """Return the model in an ONNX file that `gpaco export` wrote; raise an error for options that only runs have."""
    for option, given, remedy in (
        ("unbiased", unbiased, "it is fixed at export: give it to gpaco export"),
        ("device", device, "leave it out: an exported file runs on the CPU"),
        *((name, True, "leave it out, or give the run instead of the file") for name in how),
    ):
        if given:
            raise UserError(f"an exported file does not support --{option}", remedy)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError("an exported file runs in one process", "start it without torchrun")
    file = open_onnx(Path(path))
    if file.about["task"] == "classification":
        return open_classifier(file, prior)
    if prior is not None:
        raise UserError("--prior is for classifiers", "leave it out")
    return open_segmenter(file)


def predict_file(
    file: Path | str | Model,
    paths: Path | str | Sequence[Path | str],
    *,
    out: Path | str | None = None,
    top: int = 5,
    batch_size: int = 64,
    uncertain: float | None = None,
    progress: Progress = no_progress,
    **options: Any,
) -> list[dict[str, Any]]:
    """Return a row for each image, as `gpaco.predict` does for a run; `options` go to `open_model`."""
    check_options(uncertain, top=top, batch_size=batch_size)
    paths = [paths] if isinstance(paths, Path | str) else paths
    model = open_model(file, **options) if isinstance(file, Path | str) else file
    if isinstance(model, ImageSegmenter):
        folder = None if out is None else output_masks(out)
        return write_masks(model, paths, folder=folder, uncertain=uncertain, progress=progress)
    place = None if out is None else output_table(out)
    how: dict[str, Any] = {"top": top, "batch_size": batch_size, "uncertain": uncertain, "progress": progress}
    return predict_rows(model, find_files(paths), place, **how)


def serve_file(path: Path | str, *, host: str = HOST, port: int = PORT, say: Say = print, **options: Any) -> None:
    """Serve an exported file until interrupted; `options` go to `open_model`."""
    with listen(host, port) as listener:
        serve_model(open_model(path, **options), listener, say, host=host)
