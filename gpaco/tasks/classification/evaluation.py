"""How good a model is: logits of a whole set, sharded over processes and exact, and the figures made from them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpaco.data.class_maps import published_as
from gpaco.data.samples import Samples
from gpaco.data.views.eval import images_as_tested
from gpaco.errors import UserError
from gpaco.metrics.classification import summarize
from gpaco.system import distributed
from gpaco.system.devices import choose_device
from gpaco.system.progress import Progress
from gpaco.system.words import counted
from gpaco.tasks.classification.class_match import matched, restricted
from gpaco.tasks.classification.predictor import Predictor, load_classifiers
from gpaco.tasks.classification.priors import Logits, check_correction, final_logits
from gpaco.tasks.classification.splits import reported, splits_of
from gpaco.training.run import Run, Runs, as_runs, check_split


@torch.inference_mode()
def logits_of(predictor: Predictor, samples: Samples, *, batch_size: int = 256, show: Progress | None = None) -> Logits:
    """Logits (N, C) of all samples; each process does its share once, and all get the whole."""
    mine = np.array(distributed.mine(len(samples)), np.int64)
    chunks = [mine[k : k + batch_size] for k in range(0, len(mine), batch_size)]
    device = predictor.mean.device
    parts = [torch.zeros(0, len(predictor.classes))]
    done = 0
    for chunk, images in zip(chunks, images_as_tested(samples, predictor.card.view, chunks), strict=True):
        parts.append(predictor(images.to(device)).float().cpu())
        done += len(chunk)
        if show is not None:
            show(done, len(mine))
    logits: Logits = distributed.in_order(torch.cat(parts).to(device), len(samples)).cpu().numpy()
    return logits


def evaluation_part(
    run: Run,
    data: "Path | str | None",
    *,
    others: Sequence[Run] = (),
    root: "Path | str | None" = None,
    say: Callable[[str], None] = lambda line: None,
) -> Samples:
    """What a run is evaluated on: the part of its own data that it reports on, or of other data test, val or train.

    Neither the run nor the `others` of an ensemble may have been trained on some of it.
    """
    splits = splits_of(run.recipe, data, root=root, run=run.folder)
    name, part = reported(run.recipe, splits) if data is None else splits.parts()[-1]
    if part:
        where = "of the data of the run" if data is None else f"of {data}"
        say(f"evaluated on: {name if len(splits.parts()) > 1 else 'all'} {where}, {counted(len(part), 'image')}")
    own = run.recipe.data.path
    if data is not None and len(splits.parts()) == 1 and own and Path(own).resolve() == Path(data).resolve():
        say(f"most of it was trained on: `gpaco evaluate {run.folder}` alone scores the part that was left out")
    for one in (run, *others) if data is None else ():
        check_split(one, splits, name, say)
    if not part:
        raise UserError("there is no image to evaluate on", "give data: gpaco evaluate RUN DATA")
    return part


def evaluate(
    runs: Runs,
    data: "Path | str | Samples | None" = None,
    *,
    root: "Path | str | None" = None,
    prior: str | None = None,
    unbiased: bool = False,
    tune_prior: bool = False,
    many: float | None = None,
    few: float | None = None,
    restrict: bool = False,
    which: str = "best",
    device: str | None = None,
    out: Path | str | None = None,
    show: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
    **how: Any,
) -> dict[str, Any]:
    """Figures of a run, or of several as an ensemble (the mean of their logits), on its own test data or on other data.

    The paths of a table or list start from `root`; unless given, from that of the run (data.root), or its own folder.
    `prior` is the class distribution expected at test time: "uniform", "train" or a CSV file. `unbiased` corrects a
    model trained with the paper's prior for what the loss itself takes from frequent classes. `tune_prior` chooses a
    further tau * log prior on the validation data of each run first, and keeps it with the run.

    Other data is matched by the names of its classes: images of a class that the model does not know are left out, and
    `overlap` in the result says which. Classes that the data does not have stay possible answers, as they are in use;
    with `restrict` only those that it has can be given.

    Under torchrun every process does its share, and all get the figures of the whole.

    Of a segmenter, `data` is a folder of pictures and masks, `many` and `few` are multiples of the mean share of
    pixels, and `how` may have `scales`, `flip`, `window` and `stride` (gpaco/tasks/segmentation/inference.py).
    """
    several = as_runs(runs)
    where = choose_device(device)
    distributed.start(where, several[0].recipe.train.timeout)
    if distributed.rank():
        say, show = (lambda line: None), None
    if root is not None and (data is None or isinstance(data, Samples)):
        raise UserError("a root is for a table or list, and there is none", "gpaco evaluate RUN LIST --root FOLDER")
    if several[0].recipe.train.task == "segmentation":
        if root is not None:
            raise UserError("--root is for tables and lists of images", "leave it out")
        if prior is not None or unbiased or tune_prior or restrict:
            raise UserError("--prior, --unbiased, --tune-prior and --restrict are of classifiers", "leave them out")
        how |= {"many": many, "few": few, "which": which, "device": where, "show": show, "say": say}
        return evaluate_segmenter(several, data, out=out, **how)
    if how:
        raise UserError(f"a classifier has no {sorted(how)[0]}", "scales, flip, window and stride are of segmentation")
    if tune_prior:
        if which != "best":
            raise UserError("--tune-prior is for the best checkpoint, the one that is used", "leave out --checkpoint")
        from gpaco.tasks.classification.results import tune_prior as tune_run  # which evaluates, too

        for run in several:
            tune_run(run, unbiased=unbiased, device=device, say=say, show=show)
    if isinstance(data, Samples):
        samples = data
    else:
        samples = evaluation_part(several[0], data, others=several[1:], root=root, say=say)
    predictors = load_classifiers(several, which=which, device=where)
    classes = predictors[0].classes
    found = None
    if samples.classes != classes or restrict:
        published = published_as(samples.classes)
        samples, found = matched(samples, classes)
        for note in found.notes(classes):
            say(note)
        if published in ("imagenet-r", "imagenet-a") and not restrict:
            say(f"these are the classes of {published}, whose figures are of answers among them: --restrict")
    card = predictors[0].card
    many, few = card.many if many is None else many, card.few if few is None else few
    if few > many:
        raise UserError(f"few ({few}) must not be above many ({many})", "--many 100 --few 20 is usual")
    for predictor in predictors:
        check_correction(predictor.card, prior, unbiased)
    summed = sum(
        final_logits(logits_of(predictor, samples, show=show), predictor.card, prior=prior, unbiased=unbiased)
        for predictor in predictors
    )
    logits = np.asarray(summed) / len(predictors)
    if found is not None and restrict:
        logits = restricted(logits, found.there)
    result = summarize(logits, samples.labels, card.counts, classes, many=many, few=few)
    if found is not None:
        result["overlap"] = found.facts(restrict)
    tuned = [asdict(one.card.tuned) if one.card.tuned else None for one in predictors]
    if any(tuned):
        result["tuned"] = tuned[0] if len(tuned) == 1 else tuned
    return written(result, out)


def evaluate_segmenter(
    runs: Sequence[Run], data: "Path | str | Samples | None", *, out: Path | str | None, **how: Any
) -> dict[str, Any]:
    """`evaluate` of a run that segments."""
    from gpaco.tasks.segmentation.evaluation import evaluate_run

    if len(runs) > 1 or isinstance(data, Samples):
        raise UserError("segmenters are evaluated one at a time, on a folder", "give one run and at most one folder")
    return written(evaluate_run(runs[0], data, **how), out)


def written(result: dict[str, Any], out: Path | str | None) -> dict[str, Any]:
    """The same, also as a file if one is asked for; of several processes the first one writes it."""
    if out is not None and distributed.rank() == 0:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(result, indent=1))
    return result
