"""A further tau * log prior for a trained model, chosen on validation data and kept with its run."""

from typing import Any

import torch

from gpaco import distributed
from gpaco.data.samples import Samples
from gpaco.evaluation import Show, logits_of
from gpaco.priors import best_tau, final_logits, no_validation, write_tuned
from gpaco.run import Run, load_classifier


def tune(
    run: Run,
    validation: Samples | None,
    *,
    unbiased: bool = False,
    device: str | torch.device = "cpu",
    show: Show | None = None,
) -> dict[str, Any]:
    """Choose tau for the best checkpoint of a run by macro recall on validation data, and write it to the run."""
    if validation is None:
        raise no_validation()
    predictor = load_classifier(run, device=device, tuned=False)
    logits = final_logits(logits_of(predictor, validation, show=show), predictor.about, unbiased=unbiased)
    tau, before, after = best_tau(logits, validation.labels, predictor.about["counts"])
    step = predictor.about["step"]
    tuned = {"tau": tau, "unbiased": unbiased, "step": step, "val_macro_before": before, "val_macro": after}
    if distributed.rank() == 0:
        write_tuned(run.folder, tuned)
    distributed.barrier()  # nobody loads the model before it is written
    return tuned
