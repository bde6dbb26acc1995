"""Results of a finished run: metrics and predictions of its selected checkpoint, an analysis, a tuned prior."""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from io import BytesIO
from typing import Any

import numpy as np
import torch

from gpaco import methods
from gpaco.data.inspection import INSPECTION_LIMIT
from gpaco.data.leaks import record
from gpaco.data.samples import Samples, Splits
from gpaco.errors import Problem
from gpaco.metrics.classification import summarize
from gpaco.metrics.groups import one_group
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.files import write_atomic
from gpaco.system.locks import lock
from gpaco.system.progress import Progress, Say, as_progress, no_progress, quiet
from gpaco.tasks.classification.analysis import analyze
from gpaco.tasks.classification.batches import FeatureSource, caches
from gpaco.tasks.classification.calibration import fit_calibration, write_calibration
from gpaco.tasks.classification.card import Tuned
from gpaco.tasks.classification.evaluation import logits_of
from gpaco.tasks.classification.heads import HeldOut, held_out_logits, trained_logits, without_small_classes
from gpaco.tasks.classification.learner import ClassificationLearner
from gpaco.tasks.classification.logits import Logits
from gpaco.tasks.classification.predictor import Predictor, load_classifier, with_calibration, with_prior
from gpaco.tasks.classification.priors import (
    best_tau,
    describe_tuned,
    final_logits,
    no_validation,
    read_tuned,
    write_tuned,
)
from gpaco.tasks.classification.splits import check_tuning, splits_of
from gpaco.training.run import Run, check_split, newest, result_facts

MAIN = ("top1", "many", "medium", "few", "macro", "ece")  # metrics for the parts of a model


def write_results(
    run: Run,
    recipe: Recipe,
    splits: Splits,
    device: torch.device,
    say: Say,
    *,
    learner: ClassificationLearner | None = None,
    unbiased: bool = False,
    progress: Progress = no_progress,
) -> None:
    """Calibrate the selected checkpoint, tune the prior if requested, evaluate, and write everything.

    `metrics.json` is written last.

    Args:
        learner: from the training that has just ended; None for a finished run.
        unbiased: tune the prior after correcting the bias of the loss.
    """
    # A run may have a calibration and a tuned prior already: it must not be calibrated on top of them.
    tunes, finished = recipe.method.tune_prior, learner is None
    predictor = load_classifier(run, device=device, calibrated=finished, tuned=finished and not tunes)
    models: dict[str, Predictor] = {}
    if learner is not None:
        models = calibrated(learner, predictor, device, say)
        predictor = models.get(used_part(recipe), predictor)
        if predictor.card.calibration and distributed.rank() == 0:
            stored = write_calibration(run.folder, predictor.card.calibration, predictor.gaussian)
            predictor.card = replace(predictor.card, calibration=stored)
        tuned = None if tunes else read_tuned(run.folder)
        if tuned and tuned.step == predictor.card.step:
            predictor = with_prior(predictor, tuned)
    source = learner.source if learner and isinstance(learner.source, FeatureSource) else None
    if tunes:
        predictor = with_prior(predictor, tune(predictor, splits.val, unbiased, progress))
        if predictor.card.tuned:
            say(describe_tuned(predictor.card.tuned))
    card = predictor.card
    analyzed = recipe.train.report and recipe.method.name in methods.ANALYZED
    analyzed = analyzed and not (finished and (run.folder / "analysis.json").is_file())  # a prior does not change it
    if line := one_group(splits.train.counts, recipe.data.many, recipe.data.few):
        say(line)
    split, samples = splits.reported(recipe.data.evaluate_on)
    if samples is None:
        if card.tuned and distributed.rank() == 0:
            write_tuned(run.folder, card.tuned)
        if analyzed and distributed.rank() == 0:
            write_analysis(run, splits.train, predictor, source, say)
        say("there is no data to evaluate on, so only the model was written")
        return
    if source is None:
        logits, parts = logits_of(predictor, samples, progress=as_progress(say, "evaluating")), None
    else:
        logits, parts = source.answers(predictor.logits, samples), _parts(models, source, samples)
    if distributed.rank():  # the others do not wait for what the first does alone
        return
    if analyzed:
        write_analysis(run, splits.train, predictor, source, say)
    state = newest(run).state
    result = summarize(logits, samples.labels, card.counts, card.classes, many=card.many, few=card.few)
    result |= result_facts(recipe, state, split) | {
        "assumes": card.assumes,
        "shift": state["position"]["shift"],
        "counts": card.counts,
        "shown": card.shown,
    }
    if parts is None and (run.folder / "metrics.json").is_file():  # from a finished run whose prior is being tuned
        parts = run.metrics.get("parts")
    result["parts"] = parts
    predictions = BytesIO()
    np.savez(predictions, logits=logits, labels=samples.labels, names=np.array(list(samples.names)))
    data = json.dumps(record(splits, limit=INSPECTION_LIMIT), indent=1)
    write_atomic(run.folder / "predictions.npz", predictions.getvalue())
    write_atomic(run.folder / "data.json", data)
    if card.calibration:
        result["calibration"] = asdict(card.calibration)
    if card.tuned:
        result["tuned"] = asdict(card.tuned)
        write_tuned(run.folder, card.tuned)
    write_atomic(run.folder / "metrics.json", json.dumps(result, indent=1))


def _parts(models: Mapping[str, Predictor], source: FeatureSource, samples: Samples) -> dict[str, dict[str, Any]]:
    """Return the main metrics of the trained head alone, of the closed-form classifier alone, and of their sum."""
    found = {}
    for name, model in models.items():
        card, logits = model.card, source.answers(model.logits, samples)
        whole = summarize(logits, samples.labels, card.counts, card.classes, many=card.many, few=card.few)
        found[name] = {key: whole[key] for key in MAIN}
    return found


def write_analysis(run: Run, samples: Samples, predictor: Predictor, source: FeatureSource | None, say: Say) -> None:
    """Write `analysis.json`, so that the page can show it without the training images."""
    say("measuring gradients and probabilities on training images")
    try:
        result = analyze(run, samples, predictor, source)
    except Exception as error:  # a missing image, or an operator that the device lacks: the model itself is fine
        cause = error.cause if isinstance(error, Problem) else f"{type(error).__name__}: {error}"
        say(f"no analysis.json: {cause}")
        return
    write_atomic(run.folder / "analysis.json", json.dumps(result, allow_nan=False))


def calibrated(
    learner: ClassificationLearner, predictor: Predictor, device: torch.device, say: Say
) -> dict[str, Predictor]:
    """Return the model as "head", with factors fitted on the logits of images that it was not trained on.

    For a head on cached features, there are also "gaussian", the closed-form classifier, and "fused", the sum of both.
    It is cross-validated, unless an earlier stage trained the backbone on the same images. Other models need validation
    data that is not reported on; without it, the result is empty.
    """
    card, gaussian, source = predictor.card, learner.gaussian, learner.source
    val = learner.splits.selecting(learner.recipe.data.evaluate_on)
    earlier, closed = learner.before, learner.recipe.method.name in methods.CLOSED_FORM
    if gaussian is not None and (closed or not earlier.weights or earlier.stages):
        held = held_out_logits(learner, device, as_progress(say, "cross-validating"))
        held_out = len(held.labels) > 0
        if not held_out:
            say("every class has only one training image: calibration assumes that half of the predictions are wrong")
            held = trained_logits(learner, gaussian, predictor.head)
        held = without_small_classes(held, learner.splits.train.counts)
    elif val is None or not card.classifies:
        if gaussian is not None and used_part(learner.recipe) == "fused":
            say("the closed-form classifier is not added: there are no validation images to weigh it on")
        return {}
    elif gaussian is not None and isinstance(source, FeatureSource):
        held, held_out = HeldOut(val.labels, source.answers(gaussian, val), source.answers(predictor.head, val)), True
    else:
        logits = logits_of(predictor, val, progress=as_progress(say, "calibrating"))
        return {"head": with_calibration(predictor, fit_calibration(card, val.labels, logits, None))}
    parts: dict[str, tuple[Logits | None, Logits | None]] = {"gaussian": (None, held.gaussian)}
    if held.head is not None:
        parts |= {"head": (held.head, None), "fused": (held.head, held.gaussian)}
    return {
        name: with_calibration(
            predictor,
            fit_calibration(card, held.labels, *logits, held_out=held_out),
            None if name == "head" else gaussian,
        )
        for name, logits in parts.items()
    }


def used_part(recipe: Recipe) -> str:
    """Return which of the models from `calibrated` a run uses."""
    if recipe.method.name in methods.CLOSED_FORM:
        return "gaussian"
    return "fused" if recipe.method.fuse and caches(recipe) else "head"


def tune(predictor: Predictor, validation: Samples | None, unbiased: bool, progress: Progress) -> Tuned:
    """Select tau by macro recall on validation data, for a model without a tuned prior.

    With `unbiased`, its logits are first corrected for the bias of the loss.
    """
    if validation is None:
        raise no_validation()
    card = predictor.card
    logits = final_logits(logits_of(predictor, validation, progress=progress), card, unbiased=unbiased)
    tau, before, after = best_tau(logits, validation.labels, card.counts or ())
    return Tuned(tau=tau, unbiased=unbiased, step=card.step, val_macro_before=before, val_macro=after)


def tune_prior(run: Run, device: torch.device, say: Say, *, unbiased: bool, progress: Progress) -> None:
    """Tune the prior of a finished run on its validation data, store it with the run, and rewrite its metrics."""
    run.check_finished()
    last = recipes.stages(run.recipe)[-1]
    check_tuning(last)
    with lock(run.folder) if distributed.rank() == 0 else nullcontext():
        splits = splits_of(run.recipe, run=run.folder)
        check_split(run, splits, "val", say)
        check_split(run, splits, splits.reported(last.data.evaluate_on)[0])  # `evaluate` prints the result
        tuning = replace(last, method=replace(last.method, tune_prior=True))
        write_results(run, tuning, splits, device, quiet, unbiased=unbiased, progress=progress)
        distributed.barrier()  # no process may load the model before it is written
