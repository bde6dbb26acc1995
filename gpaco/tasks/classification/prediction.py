"""Predictions of runs for new images: a row for each file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpaco.data.files import find_files
from gpaco.data.images import Pixels
from gpaco.data.views.eval import as_tested
from gpaco.metrics.groups import groups
from gpaco.system import distributed
from gpaco.system.progress import Progress
from gpaco.tasks.classification.logits import Logits
from gpaco.tasks.classification.predictor import load_classifiers
from gpaco.tasks.classification.priors import assumed_prior, check_correction, final_logits
from gpaco.tasks.classification.rows import ImageClassifier, Row, Seen, output_table, predict_rows
from gpaco.training.run import Run


def predict_classes(
    runs: Sequence[Run],
    paths: Sequence[Path | str],
    *,
    out: Path | str | None,
    prior: str | None,
    unbiased: bool,
    top: int,
    batch_size: int,
    uncertain: float | None,
    device: torch.device,
    progress: Progress,
) -> list[Row]:
    """Return a row for each image, and write it to `out` if given; see `gpaco.predict`."""
    place = None if out is None else output_table(out, [place for run in runs for place in run.recipe.data.places])
    files = find_files(paths)
    model = image_classifier(runs, prior=prior, unbiased=unbiased, device=device)
    how: dict[str, Any] = {"top": top, "batch_size": batch_size, "uncertain": uncertain, "progress": progress}
    return predict_rows(model, files, place, work=distributed.shared_work(), **how)


def image_classifier(
    runs: Sequence[Run], *, prior: str | None, unbiased: bool, device: torch.device
) -> ImageClassifier:
    """Return the model of a run, or an ensemble of several (their mean logits), for prediction."""
    predictors = load_classifiers(runs, device=device)
    for predictor in predictors:
        check_correction(predictor.card, prior, unbiased)
    card = predictors[0].card

    def see(image: Pixels) -> Seen:
        return [as_tested(image, predictor.card.view) for predictor in predictors]

    @torch.inference_mode()
    def logits(images: Sequence[Seen]) -> Logits:
        parts = []
        for which, predictor in enumerate(predictors):
            stacked = torch.from_numpy(np.stack([image[which] for image in images])).permute(0, 3, 1, 2)
            raw = predictor(stacked.to(predictor.mean.device)).float().cpu().numpy()
            parts.append(final_logits(raw, predictor.card, prior=prior, unbiased=unbiased))
        return np.asarray(sum(parts[1:], start=parts[0]) / len(parts))

    return ImageClassifier(
        name=runs[0].folder.resolve().name,
        classes=card.classes,
        counts=card.counts,
        groups=None if card.counts is None else tuple(groups(card.counts, card.many, card.few).tolist()),
        assumed=assumed_prior([predictor.card for predictor in predictors], prior),
        least=max(predictor.card.view.least for predictor in predictors),
        see=see,
        logits=logits,
    )
