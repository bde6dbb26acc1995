"""A further tau * log prior for a trained model, chosen on validation data."""

from typing import Any

from gpaco.data.samples import Samples
from gpaco.system.progress import Progress
from gpaco.tasks.classification.evaluation import logits_of
from gpaco.tasks.classification.priors import best_tau, final_logits, no_validation
from gpaco.training.run import Predictor


def tune(
    predictor: Predictor, validation: Samples | None, *, unbiased: bool = False, show: Progress | None = None
) -> dict[str, Any]:
    """Choose tau for a model without a tuned prior, by macro recall on validation data; `priors.write_tuned` keeps it.

    With `unbiased`, its logits are corrected for the bias of the loss first.
    """
    if validation is None:
        raise no_validation()
    logits = final_logits(logits_of(predictor, validation, show=show), predictor.about, unbiased=unbiased)
    tau, before, after = best_tau(logits, validation.labels, predictor.about["counts"])
    step = predictor.about["step"]
    return {"tau": tau, "unbiased": unbiased, "step": step, "val_macro_before": before, "val_macro": after}
