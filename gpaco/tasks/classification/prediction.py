"""What a trained model says about new images: one row per file. A file that cannot be read is a row with its error."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpaco.data.images import SUFFIXES, read_image
from gpaco.data.readers.rows import read_text
from gpaco.data.views.eval import as_tested
from gpaco.errors import Problem, UserError, nearest
from gpaco.metrics.groups import groups
from gpaco.system.devices import choose_device
from gpaco.system.progress import Progress
from gpaco.system.words import printable
from gpaco.tasks.classification.predictor import Predictor, load_classifiers
from gpaco.tasks.classification.priors import check_correction, final_logits
from gpaco.training.run import Runs, as_runs

Row = dict[str, Any]
TABLES = (".csv", ".tsv", ".parquet")
TAKEN = "give images, folders of images, or .txt lists with a path in each line"


def predict(
    runs: Runs,
    paths: Path | str | Sequence[Path | str],
    *,
    out: Path | str | None = None,
    prior: str | None = None,
    unbiased: bool = False,
    top: int = 5,
    batch_size: int = 64,
    device: str | None = None,
    show: Progress | None = None,
    **how: Any,
) -> list[Row]:
    """A row for each image: path, class, probability, the group of the class, the `top` classes, and error (or None).

    `paths` are files, folders (searched for images) and lists (.txt, a path in each line, with or without the number of
    its class). Several runs are an ensemble.
    With `out`, rows are also written to a .csv or .jsonl file as they come.

    Of a segmenter, rows are those of `segmentation.prediction.predict_masks`, `out` is a folder for masks and
    overlays, and `how` may have `scales`, `flip`, `window` and `stride`.
    """
    several = as_runs(runs)
    if several[0].recipe.train.task == "segmentation":
        from gpaco.tasks.segmentation.prediction import predict_masks

        if len(several) > 1 or prior is not None or unbiased:
            raise UserError("segmenters predict one at a time, without --prior and --unbiased", "leave them out")
        return predict_masks(several[0], paths, out=out, device=choose_device(device), show=show, **how)
    if how:
        raise UserError(f"a classifier has no {sorted(how)[0]}", "scales, flip, window and stride are of segmentation")
    files = find_files([paths] if isinstance(paths, Path | str) else paths)
    predictors = load_classifiers(several, device=choose_device(device))
    for predictor in predictors:
        check_correction(predictor.card, prior, unbiased)
    card = predictors[0].card
    group = None if card.counts is None else groups(card.counts, card.many, card.few)
    rows: list[Row] = []
    with _writer(out, top) as write, ThreadPoolExecutor(max(2, torch.get_num_threads())) as pool:
        for start in range(0, len(files), batch_size):
            chunk = files[start : start + batch_size]
            images = list(pool.map(lambda path: _read(path, predictors), chunk))
            for row in _rows(predictors, chunk, images, group, prior, unbiased, top):
                rows.append(row)
                write(row)
            if show is not None:
                show(len(rows), len(files))
    return rows


def find_files(paths: Sequence[Path | str]) -> list[Path]:
    """The images that the paths name, in order; those in folders sorted. One that a list names need not exist."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        elif not path.exists():
            beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
            raise UserError(f"{str(path)!r} does not exist{nearest(path.name, beside)}", TAKEN)
        elif path.suffix.lower() in TABLES:
            raise UserError(f"{str(path)!r} is a table, not an image", TAKEN)
        elif path.suffix.lower() == ".txt":
            text, _ = read_text(path)
            files += [_listed(path.parent, line.strip()) for line in text.splitlines() if line.strip()]
        else:
            files.append(path)
    if not files:
        raise UserError(f"there is no image in {', '.join(map(str, paths))}", TAKEN)
    return files


def _listed(folder: Path, line: str) -> Path:
    """The image that a line of a list names; the number of a class after it, as in lists to train on, is not for us."""
    whole = folder / line
    name, *label = line.rsplit(None, 1)
    labeled = label and label[0].isdigit() and whole.suffix.lower() not in SUFFIXES and not whole.exists()
    return folder / name if labeled else whole


def _read(path: Path, predictors: list[Predictor]) -> list[np.ndarray] | str:
    """The image as each model wants it, or why there is none."""
    try:
        image = read_image(path)
    except Problem as error:
        return error.cause
    return [as_tested(image, predictor.card.view) for predictor in predictors]


@torch.inference_mode()
def _rows(
    predictors: list[Predictor],
    files: list[Path],
    images: list[list[np.ndarray] | str],
    group: np.ndarray | None,
    prior: str | None,
    unbiased: bool,
    top: int,
) -> Iterator[Row]:
    good = [k for k, image in enumerate(images) if not isinstance(image, str)]
    probabilities = torch.zeros(0)
    if good:
        summed = sum(
            final_logits(
                _logits(predictor, [images[k][which] for k in good]), predictor.card, prior=prior, unbiased=unbiased
            )
            for which, predictor in enumerate(predictors)
        )
        probabilities = torch.from_numpy(np.asarray(summed) / len(predictors)).softmax(1)
    classes = predictors[0].classes
    for k, (file, image) in enumerate(zip(files, images, strict=True)):
        if isinstance(image, str):
            nothing = dict.fromkeys(("class", "probability", "group"))
            yield {"path": printable(file), **nothing, "top": [], "error": image}
            continue
        best = probabilities[good.index(k)].topk(min(top, len(classes)))
        pairs = [(classes[c], round(p, 6)) for c, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        first = int(best.indices[0])
        yield {
            "path": printable(file),
            "class": pairs[0][0],
            "probability": pairs[0][1],
            "group": None if group is None else str(group[first]),
            "top": pairs,
            "error": None,
        }


def _logits(predictor: Predictor, images: list[Any]) -> np.ndarray:
    stacked = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    logits: np.ndarray = predictor(stacked.to(predictor.mean.device)).float().cpu().numpy()
    return logits


@contextmanager
def _writer(out: Path | str | None, top: int) -> Iterator[Callable[[Row], object]]:
    """Yield a function that writes a row to a file, in the form that its name says."""
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
