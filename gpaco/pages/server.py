"""The page of `gpaco serve`: drop images, see classes. One file without references to other hosts."""

import numpy as np

from gpaco.metrics.classification import reversed_prior
from gpaco.pages.render import Facts, page_script, rendered, safe_json, template_text
from gpaco.tasks.classification.logits import log_prior
from gpaco.tasks.classification.rows import ImageClassifier
from gpaco.tasks.segmentation.masks import ImageSegmenter

SCRIPTS = ("charts.js", "serve.js")


def server_page(model: ImageClassifier | ImageSegmenter) -> str:
    """Return the page about a model."""
    facts = page_facts(model)
    shown = {"data": facts, "json": safe_json(facts)} | page_script(SCRIPTS)
    return rendered("serve.html", shown | {"more_style": template_text("serve.css")})


def page_facts(model: ImageClassifier | ImageSegmenter) -> Facts:
    """Return the facts on the page: classes, how rare they are, and class distributions as logs."""
    facts: Facts = {"name": model.name, "classes": model.classes, "groups": model.groups, "train": model.counts}
    if isinstance(model, ImageSegmenter):
        return facts | {"task": "segmentation", "priors": None}
    if model.counts is None or model.assumed is None:
        return facts | {"task": "classification", "priors": None}
    train, assumed = log_prior(model.counts), model.assumed - model.assumed.max()
    named = {0: train - train.max(), 100: np.zeros(len(train))}
    start = next((place for place, logs in named.items() if np.allclose(assumed, logs, rtol=0, atol=1e-6)), None)
    reverse = np.log(reversed_prior(np.maximum(model.counts, 1)))
    priors = {"train": train.tolist(), "reversed": reverse.tolist(), "assumed": assumed.tolist(), "start": start}
    return facts | {"task": "classification", "priors": priors}
