"""Logits of a whole data set, sharded over processes, and the metrics computed from them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpaco.data.agreement import check_same_everywhere
from gpaco.data.class_maps import published_as
from gpaco.data.samples import Samples
from gpaco.data.views.eval import images_as_tested
from gpaco.data.walk import real_paths
from gpaco.errors import Problem, UserError
from gpaco.metrics.classification import summarize
from gpaco.system import distributed
from gpaco.system.progress import Progress, Say, no_progress, quiet
from gpaco.system.words import plural
from gpaco.tasks.classification.class_match import matched, restricted
from gpaco.tasks.classification.logits import Logits
from gpaco.tasks.classification.predictor import Predictor, load_classifiers, total_cost
from gpaco.tasks.classification.priors import check_correction, final_logits
from gpaco.tasks.classification.splits import as_files, held_out, other_data, read_splits, splits_of
from gpaco.training.run import Run, check_data, check_split, missing_data, newest

Ints = NDArray[np.int64]
_BATCH = 256  # images


def logits_of(predictor: Predictor, samples: Samples, *, progress: Progress = no_progress) -> Logits:
    """Return the logits (N, C) of all samples. Each process computes its share, and all get the whole."""
    logits: Logits = _answers(predictor, samples, Tensor.float, progress)
    return logits


def predictions_of(predictor: Predictor, samples: Samples) -> Ints:
    """Return the predicted class of each sample (N,), -1 if its logits are not finite; computed as in `logits_of`."""
    predictions: Ints = _answers(predictor, samples, predicted, no_progress)
    return predictions


def predicted(logits: Tensor) -> Tensor:
    """Return the class of each row, (N,); -1 if its largest logit is not finite."""
    most, found = logits.float().max(1)
    return found.where(most.isfinite(), -1)


@torch.inference_mode()
def _answers(
    predictor: Predictor, samples: Samples, wanted: Callable[[Tensor], Tensor], progress: Progress
) -> NDArray[Any]:
    mine = np.array(distributed.own_share(len(samples)), np.int64)
    chunks = [mine[k : k + _BATCH] for k in range(0, len(mine), _BATCH)]
    device = predictor.mean.device
    parts = [wanted(torch.zeros(0, len(predictor.classes)))]
    done = 0
    for images in images_as_tested(samples, predictor.card.view, chunks):
        parts.append(wanted(predictor(images.to(device))).cpu())
        done += len(images)
        progress(done, len(mine))
    answers: NDArray[Any] = distributed.in_order(torch.cat(parts), len(samples)).numpy()
    return answers


def evaluation_part(
    run: Run, data: Path | str | None, *, others: Sequence[Run] = (), root: Path | str | None = None, say: Say = quiet
) -> Samples:
    """Return the images to evaluate on: the reported split of the run's own data, or the last split of other data.

    Neither the run nor the `others` of an ensemble may have been trained on any of them.
    """
    if data is None:
        check_data(run)
        splits = splits_of(run.recipe, run=run.folder)
        name, samples = splits.reported(run.recipe.data.evaluate_on)
    else:
        splits = other_data(data, run.recipe, root)
        name, samples = splits.parts()[-1]
    check_same_everywhere(splits)
    if samples:
        part = name if len(splits.parts()) > 1 else "all"
        where = f"the {name} split of the run" if data is None else f"{part} of {data}"
        say(f"evaluated on: {where}, {plural(len(samples), 'image')}")
    if data is not None and samples and say is not quiet:
        for one in (run, *others):
            if known := _trained_on(one, data, root):
                who = one.folder if others else "the run"
                what = "it" if known == len(samples) else f"{known:,} of these {plural(len(samples), 'image')}"
                back = f" (once its data is back at {gone})" if (gone := missing_data(one)) else ""
                say(f"{who} was trained on {what}: `gpaco evaluate {one.folder}` alone uses only held-out images{back}")
    for one in (run, *others) if data is None else ():
        check_split(one, splits, name, say)
    if not samples:
        raise UserError("there are no images to evaluate on", "give data: gpaco evaluate RUN DATA")
    return samples


def labeled_files(run: Run) -> set[str]:
    """Return the real paths of the run's own images; none if they are in memory, or gone."""
    with suppress(Problem):
        parts = splits_of(as_files(run.recipe, run.folder), run=run.folder).parts()
        return {file for _, part in parts for file in real_paths(part.paths or ())}
    return set()


def _trained_on(run: Run, data: Path | str, root: Path | str | None) -> int:
    """Return how many of the files to evaluate on are training images of the run; 0 if that cannot be known.

    They are the same files, or, if the data was moved or copied, files of the same names in the same splits.
    """
    own = as_files(run.recipe, run.folder)
    copy = replace(own, data=replace(own.data, path=str(data), root=str(root or own.data.root)))
    files = real_paths(other_data(data, own, root).parts()[-1][1].paths or ())
    if not files:  # in memory
        return 0
    with suppress(Problem):  # the data of the run may be gone
        known = set(real_paths(splits_of(own, run=run.folder).train.paths or ()))
        if found := sum(file in known for file in files):
            return found
    with suppress(Problem):
        train = held_out(read_splits(copy), copy, quiet, run=run.folder).train
        if train.list_hash == newest(run).state["card"]["images"].get("train"):
            known = set(real_paths(train.paths or ()))
            return sum(file in known for file in files)
    return 0


def evaluate_runs(
    runs: Sequence[Run],
    data: Path | str | None,
    *,
    root: Path | str | None,
    prior: str | None,
    unbiased: bool,
    many: float | None,
    few: float | None,
    restrict: bool,
    which: str,
    device: torch.device,
    progress: Progress,
    say: Say,
) -> dict[str, Any]:
    """Return the metrics of a run, or of several as an ensemble; see `gpaco.evaluate`."""
    predictors = load_classifiers(runs, which=which, device=device)
    card = predictors[0].card
    many, few = card.many if many is None else many, card.few if few is None else few
    if not few <= many:
        raise UserError(f"few ({few}) must not be above many ({many})", "for example --many 100 --few 20")
    for predictor in predictors:
        check_correction(predictor.card, prior, unbiased)
    samples = evaluation_part(runs[0], data, others=runs[1:], root=root, say=say)

    found = None
    if samples.classes != card.classes or restrict:
        published = published_as(samples.classes)
        samples, found = matched(samples, card.classes)
        for note in found.notes(card.classes):
            say(note)
        if published in ("imagenet-r", "imagenet-a") and not restrict:
            say(f"the data has the classes of {published}; published metrics predict only among them: --restrict")

    summed = sum(
        final_logits(logits_of(predictor, samples, progress=progress), predictor.card, prior=prior, unbiased=unbiased)
        for predictor in predictors
    )
    logits = np.asarray(summed) / len(predictors)
    if found is not None and restrict:
        logits = restricted(logits, found.there)

    result = summarize(logits, samples.labels, card.counts, card.classes, many=many, few=few)
    if found is not None:
        result["overlap"] = found.facts(restrict)
    if len(predictors) > 1:
        result["cost"] = total_cost(predictors)
    tuned = [asdict(one.card.tuned) if one.card.tuned else None for one in predictors]
    if any(tuned):
        result["tuned"] = tuned[0] if len(tuned) == 1 else tuned
    return result
