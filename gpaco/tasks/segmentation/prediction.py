"""Predictions of a run for new images: a mask of class numbers, one in colors, and an overlay for each."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpaco.metrics.segmentation import share_groups
from gpaco.system import distributed
from gpaco.system.progress import Progress
from gpaco.tasks.segmentation.evaluation import segment
from gpaco.tasks.segmentation.masks import ImageSegmenter, Row, output_masks, write_masks
from gpaco.tasks.segmentation.predictor import load_segmenter
from gpaco.training.run import Run


def predict_masks(
    run: Run,
    paths: Sequence[Path | str],
    *,
    out: Path | str | None,
    uncertain: float | None,
    device: torch.device,
    progress: Progress,
    **how: Any,
) -> list[Row]:
    """Return a row for each image, and write its masks to the folder `out`.

    A row has the path, the three files, the mean probability of the predicted classes, the share of each class, and
    error (or None). `out` gets mask/ (class numbers), colors/, overlay/, predictions.csv, and classes.csv with the
    colors; without it, nothing is written. `how` goes to `segment`: scales, flip, window, stride.
    """
    folder = None if out is None else output_masks(out, run.recipe.data.places)
    distributed.barrier()  # no process may write there before all have checked it
    model, work = image_segmenter(run, device=device, **how), distributed.shared_work()
    return write_masks(model, paths, folder=folder, uncertain=uncertain, progress=progress, work=work)


def image_segmenter(run: Run, *, device: torch.device, **how: Any) -> ImageSegmenter:
    """Return the model of a run for prediction."""
    predictor = load_segmenter(run, device=device)
    card = predictor.card
    return ImageSegmenter(
        name=run.folder.resolve().name,
        classes=card.classes,
        palette=card.palette,
        counts=card.counts,
        groups=tuple(share_groups(card.counts, card.many, card.few).tolist()),
        segment=partial(segment, predictor, **how),
    )
