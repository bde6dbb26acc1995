"""How good a model is: logits of a whole set, sharded over processes and exact, and the figures made from them."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpaco import distributed
from gpaco.data.samples import Samples
from gpaco.data.views import eval_batch, eval_photo
from gpaco.errors import UserError, nearest
from gpaco.metrics import adjust, summarise
from gpaco.preparing import splits_of
from gpaco.run import Predictor, Run, Runs, as_runs, load

Show = Callable[[int, int], None]
Logits = NDArray[np.float32]


@torch.inference_mode()
def logits_of(predictor: Predictor, samples: Samples, *, batch_size: int = 256, show: Show | None = None) -> Logits:
    """Logits (N, C) of all samples; each process does its share once, and all get the whole."""
    mine = np.arange(distributed.rank(), len(samples), distributed.world_size())
    device = predictor.mean.device
    parts = [torch.zeros(0, len(predictor.classes))]
    for start, images in zip(
        range(0, len(mine), batch_size), _images(predictor, samples, mine, batch_size), strict=True
    ):
        parts.append(predictor(images.to(device)).float().cpu())
        if show is not None:
            show(min(start + batch_size, len(mine)), len(mine))
    gathered = distributed.gather(torch.cat(parts).to(device)).cpu().numpy()
    world = distributed.world_size()
    order = np.concatenate([np.arange(rank, len(samples), world) for rank in range(world)])
    logits = np.empty_like(gathered)
    logits[order] = gathered
    return logits


def _images(predictor: Predictor, samples: Samples, indices: NDArray[Any], size: int) -> Iterator[torch.Tensor]:
    """Batches of test-time images, (B, 3, S, S) uint8. Files are decoded by threads, one batch ahead."""
    chunks = [indices[k : k + size] for k in range(0, len(indices), size)]
    about = predictor.about
    if samples.images is not None and about["whole"]:
        for rows in chunks:
            yield eval_batch(samples.images[rows], about["size"])
        return
    with ThreadPoolExecutor(max(2, torch.get_num_threads())) as pool:

        def photo(i: int) -> NDArray[np.uint8]:
            return as_tested(samples.load(i), about)

        ahead: list[Any] = []
        for chunk in [*chunks, None]:
            if chunk is not None:
                ahead.append([pool.submit(photo, int(i)) for i in chunk])
            if ahead and (len(ahead) > 1 or chunk is None):
                stacked = np.stack([future.result() for future in ahead.pop(0)])
                yield torch.from_numpy(stacked).permute(0, 3, 1, 2).contiguous()


def as_tested(image: NDArray[np.uint8], about: dict[str, Any]) -> NDArray[np.uint8]:
    """An image (H, W, 3) at the size of the model: whole if it was trained so, else the centre of it."""
    if about["whole"]:
        whole: NDArray[np.uint8] = eval_batch(image[None], about["size"])[0].permute(1, 2, 0).numpy()
        return whole
    return eval_photo(image, about["size"], about["resize"])


def final_logits(logits: Logits, about: dict[str, Any], *, prior: str | None = None, unbiased: bool = False) -> Logits:
    """Logits corrected for the loss's own bias, if asked, and made right for a class distribution at test time."""
    counts = np.maximum(np.asarray(about["counts"], dtype=float), 1)
    if unbiased:
        if about["centre_share"] is None:
            raise UserError(
                "this run was not trained with parametric contrast: there is nothing to correct", "leave out --unbiased"
            )
        if about["prior"] != "unbiased":
            logits = logits - np.log(np.asarray(about["centre_share"], dtype=np.float32))
    if prior is None:
        return logits
    train = np.log(counts / counts.sum())
    uniform = np.zeros(len(counts))
    assumed = train if about["assumes"] == "train" else uniform
    wanted = {"train": train, "uniform": uniform}.get(prior)
    return adjust(logits, assumed, read_prior(Path(prior), about["classes"]) if wanted is None else wanted)


def check_correction(predictor: Predictor, prior: str | None, unbiased: bool) -> None:
    """Raise now what `final_logits` would raise after all images have been looked at."""
    final_logits(np.zeros((0, len(predictor.classes)), np.float32), predictor.about, prior=prior, unbiased=unbiased)


def read_prior(path: Path, classes: Sequence[str]) -> NDArray[np.float64]:
    """Log probabilities of a CSV file of `class,probability` rows (counts will do), one for each class."""
    if not path.is_file():
        raise UserError(
            f"--prior is 'uniform', 'train' or a CSV file, and there is no file {str(path)!r}"
            f"{nearest(str(path), ['uniform', 'train'])}",
            "write a file of class,probability rows",
        )
    shares: dict[str, float] = {}
    with path.open(newline="", encoding="utf-8-sig") as file:
        for line, row in enumerate(csv.reader(file), 1):
            if not row or (line == 1 and row[-1].strip().lower() in ("probability", "count", "prior")):
                continue
            if row[0] in shares:
                raise UserError(f"{path}, line {line}: a second row for class {row[0]!r}", "remove one of the two")
            try:
                shares[row[0]] = float(row[1])
            except (IndexError, ValueError):
                raise UserError(
                    f"{path}, line {line}: expected class,probability, got {row}", "mend the line"
                ) from None
    unknown = [name for name in shares if name not in set(classes)]
    missing = [name for name in classes if name not in shares]
    if unknown or missing or not all(0 < share < np.inf for share in shares.values()):
        what = (
            f"unknown class {unknown[0]!r}{nearest(unknown[0], classes)}" if unknown else "a share that is not above 0"
        )
        raise UserError(
            f"{path}: {f'no row for class {missing[0]!r}' if missing else what}", "give every class one share above 0"
        )
    values = np.array([shares[name] for name in classes])
    result: NDArray[np.float64] = np.log(values / values.sum())
    return result


def in_order_of(samples: Samples, classes: tuple[str, ...]) -> Samples:
    """The samples with labels renumbered to `classes`, by name."""
    if samples.classes == classes:
        return samples
    unknown = [name for name in samples.classes if name not in set(classes)]
    if unknown:
        raise UserError(
            f"the data has a class {unknown[0]!r} that the model does not know{nearest(unknown[0], classes)}",
            "evaluate on data with the model's classes",
        )
    places = np.array([classes.index(name) for name in samples.classes])
    return Samples(places[samples.labels], classes, images=samples.images, paths=samples.paths)


def evaluate(
    runs: Runs,
    data: "Path | str | Samples | None" = None,
    *,
    prior: str | None = None,
    unbiased: bool = False,
    many: float | None = None,
    few: float | None = None,
    which: str = "best",
    out: Path | str | None = None,
    show: Show | None = None,
    **how: Any,
) -> dict[str, Any]:
    """Figures of a run, or of several as an ensemble (the mean of their logits), on its own test data or on other data.

    `prior` is the class distribution expected at test time: "uniform", "train" or a CSV file. `unbiased` corrects a
    model trained with the paper's prior for what the loss itself takes from frequent classes.

    Of a segmenter, `data` is a folder of pictures and masks, `many` and `few` are multiples of the mean share of
    pixels, and `how` may have `scales`, `flip`, `window` and `stride` (gpaco/segmentation/inference.py).
    """
    several = as_runs(runs)
    if several[0].recipe.train.task == "segmentation":
        how |= {"many": many, "few": few, "which": which, "show": show}
        return evaluate_segmenter(several, data, prior=prior, unbiased=unbiased, out=out, **how)
    if how:
        raise UserError(f"a classifier has no {sorted(how)[0]}", "scales, flip, window and stride are of segmentation")
    if isinstance(data, Samples):
        samples = data
    else:
        recipe = several[0].recipe
        splits = splits_of(recipe, data)
        own_part = splits.val if data is None and recipe.data.evaluate_on == "val" else None
        samples = own_part or splits.test or splits.val or splits.train
    predictors = [load(run, which=which) for run in several]
    classes = predictors[0].classes
    if any(predictor.classes != classes for predictor in predictors):
        raise UserError("these runs do not have the same classes", "make an ensemble of runs on the same data")
    samples = in_order_of(samples, classes)
    about = predictors[0].about
    many, few = about["many"] if many is None else many, about["few"] if few is None else few
    if few > many:
        raise UserError(f"few ({few}) must not be above many ({many})", "--many 100 --few 20 is usual")
    for predictor in predictors:
        check_correction(predictor, prior, unbiased)
    summed = sum(
        final_logits(logits_of(predictor, samples, show=show), predictor.about, prior=prior, unbiased=unbiased)
        for predictor in predictors
    )
    result = summarise(
        np.asarray(summed) / len(predictors), samples.labels, np.asarray(about["counts"]), classes, many=many, few=few
    )
    return written(result, out)


def evaluate_segmenter(
    runs: Sequence[Run],
    data: "Path | str | Samples | None",
    *,
    prior: str | None,
    unbiased: bool,
    out: Path | str | None,
    **how: Any,
) -> dict[str, Any]:
    """`evaluate` of a run that segments."""
    from gpaco.segmentation.evaluating import evaluate_run

    if len(runs) > 1 or isinstance(data, Samples):
        raise UserError("segmenters are evaluated one at a time, on a folder", "give one run and at most one folder")
    if prior is not None or unbiased:
        raise UserError("--prior and --unbiased are corrections of classifiers", "leave them out")
    return written(evaluate_run(runs[0], data, **how), out)


def written(result: dict[str, Any], out: Path | str | None) -> dict[str, Any]:
    """The same, also as a file if one is asked for."""
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(result, indent=1))
    return result
