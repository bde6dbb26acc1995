"""Predictions for new images: a row for each file. An unreadable file is a row with its error."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpaco.data.files import find_files
from gpaco.data.images import read_image
from gpaco.data.views.eval import as_tested
from gpaco.errors import Problem, UserError
from gpaco.metrics.groups import groups
from gpaco.system.progress import Progress
from gpaco.system.words import printable
from gpaco.tasks.classification.card import Card
from gpaco.tasks.classification.predictor import Predictor, load_classifiers
from gpaco.tasks.classification.priors import check_correction, check_finite, final_logits
from gpaco.training.run import Run

Row = dict[str, Any]


def predict_classes(
    runs: Sequence[Run],
    paths: Sequence[Path | str],
    *,
    out: Path | str | None,
    prior: str | None,
    unbiased: bool,
    top: int,
    batch_size: int,
    device: torch.device,
    show: Progress | None,
) -> list[Row]:
    """Return a row for each image, and write it to `out` if given; see `gpaco.predict`."""
    files = find_files(paths)
    predictors = load_classifiers(runs, device=device)
    for predictor in predictors:
        check_correction(predictor.card, prior, unbiased)
    card = predictors[0].card
    group = None if card.counts is None else groups(card.counts, card.many, card.few)
    rows: list[Row] = []
    with _writer(out, top) as write, ThreadPoolExecutor(max(2, torch.get_num_threads())) as pool:
        for start in range(0, len(files), batch_size):
            chunk = files[start : start + batch_size]
            images = list(pool.map(lambda path: _read(path, predictors), chunk))
            good = [image for image in images if not isinstance(image, str)]
            probabilities = iter(_probabilities(predictors, good, prior, unbiased) if good else ())
            for file, image in zip(chunk, images, strict=True):
                row: Row = {
                    "path": printable(file),
                    **dict.fromkeys(("class", "probability", "group", "train")),
                    "top": [],
                }
                if isinstance(image, str):
                    row["error"] = image
                else:
                    row |= _answer(next(probabilities), card, group, top) | {"error": None}
                rows.append(row)
                write(row)
            if show is not None:
                show(len(rows), len(files))
    return rows


def _read(path: Path, predictors: list[Predictor]) -> list[np.ndarray] | str:
    """The image as each model takes it, or why it cannot be read."""
    try:
        image = read_image(path, max(predictor.card.view.least for predictor in predictors))
    except Problem as error:
        return error.cause
    return [as_tested(image, predictor.card.view) for predictor in predictors]


def _answer(probabilities: Tensor, card: Card, group: np.ndarray | None, top: int) -> Row:
    best = probabilities.topk(min(top, len(card.classes)))
    pairs = [(card.classes[c], round(p, 6)) for c, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    first = int(best.indices[0])
    return {
        "class": pairs[0][0],
        "probability": pairs[0][1],
        "group": None if group is None else str(group[first]),
        "train": None if card.counts is None else card.counts[first],
        "top": pairs,
    }


@torch.inference_mode()
def _probabilities(
    predictors: list[Predictor], images: list[list[np.ndarray]], prior: str | None, unbiased: bool
) -> Tensor:
    """Return the softmax of the mean logits of all models, (N, C)."""
    summed: Any = 0
    for which, predictor in enumerate(predictors):
        stacked = torch.from_numpy(np.stack([image[which] for image in images])).permute(0, 3, 1, 2)
        logits = predictor(stacked.to(predictor.mean.device)).float().cpu().numpy()
        check_finite(logits)
        summed = summed + final_logits(logits, predictor.card, prior=prior, unbiased=unbiased)
    return torch.from_numpy(summed / len(predictors)).softmax(1)


@contextmanager
def _writer(out: Path | str | None, top: int) -> Iterator[Callable[[Row], object]]:
    """Yield a function that writes a row to a file, as CSV or JSON lines by its suffix."""
    if out is None:
        yield lambda row: None
        return
    path = Path(out)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".jsonl"):
        raise UserError(f"predictions cannot be written to {path.name!r}", "use a name with .csv or .jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        if suffix == ".jsonl":
            yield lambda row: print(json.dumps(row, ensure_ascii=False), file=file)
            return
        table = csv.writer(file)
        tops = [f"{what}_{k}" for k in range(1, top + 1) for what in ("class", "probability")]
        table.writerow(["path", "class", "probability", "group", *tops, "error"])
        blank = [("", "")] * top

        def write(row: Row) -> None:
            flat = [value for pair in [*row["top"], *blank][:top] for value in pair]
            table.writerow([row["path"], row["class"], row["probability"], row["group"], *flat, row["error"]])

        yield write
