"""The answer for an image as JSON, for classifiers and segmenters."""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gpaco.api.serving.uploads import Refused
from gpaco.errors import nearest
from gpaco.metrics.classification import adjust
from gpaco.tasks.classification.logits import Floats, check_finite, softmax, wanted_prior
from gpaco.tasks.classification.rows import ImageClassifier, Seen
from gpaco.tasks.segmentation.masks import ImageSegmenter

Model = ImageClassifier | ImageSegmenter


class Query(NamedTuple):
    """The parameters of a request."""

    top: int  # number of classes to return
    prior: Floats | None  # log of the expected class distribution, (C,)
    scores: bool  # whether to return the logarithms of all probabilities


def read_query(model: Model, query: Mapping[str, str]) -> Query | None:
    """Check and parse a query: `top`, the number of classes; `prior`, "uniform" or "train"; `scores`.

    Segmenters have no parameters.
    """
    known = Query._fields if isinstance(model, ImageClassifier) else ()
    if unknown := [name for name in query if name not in known]:
        which = f"parameters are {', '.join(known)}" if known else "a segmenter has no parameters"
        raise Refused(400, f"there is no parameter {unknown[0][:20]!r}{nearest(unknown[0], known)}", which)
    if not isinstance(model, ImageClassifier):
        return None
    top, prior = query.get("top", "5"), query.get("prior")
    if not re.fullmatch("[1-9][0-9]{0,5}", top):
        raise Refused(400, f"top must be a positive whole number, got {top[:20]!r}", "change it or leave it out")
    scores = query.get("scores", "0")
    if scores not in ("0", "1"):
        raise Refused(400, f"scores must be 0 or 1, got {scores[:20]!r}", "change it or leave it out")
    return Query(int(top), None if prior is None else log_shares(model, prior), scores == "1")


def log_shares(model: ImageClassifier, prior: str) -> Floats:
    if prior not in ("uniform", "train"):
        raise Refused(
            400,
            f"prior must be uniform or train, got {prior[:20]!r}{nearest(prior, ['uniform', 'train'])}",
            "change it or leave it out",
        )
    if model.assumed is None or model.counts is None:
        raise Refused(400, "the class counts of this model are unknown, so it cannot use a prior", "leave out prior")
    return wanted_prior(prior, model.classes, model.counts)


def logits_of(model: ImageClassifier, images: Sequence[Seen]) -> Floats:
    """Return logits, (N, C)."""
    logits = model.logits(images)
    check_finite(logits)
    return np.asarray(logits, np.float64)


def class_answer(model: ImageClassifier, logits: Floats, asked: Query) -> dict[str, Any]:
    """Return the most probable classes, each with its group and training count."""
    if asked.prior is not None and model.assumed is not None:
        logits = np.asarray(adjust(logits, model.assumed, asked.prior))
    probabilities = softmax(logits[None])[0]
    best = np.argsort(-probabilities, kind="stable")[: asked.top]
    rows = [
        {
            "class": model.classes[c],
            "probability": round(float(probabilities[c]), 6),
            "group": None if model.groups is None else model.groups[c],
            "train": None if model.counts is None else model.counts[c],
        }
        for c in best.tolist()
    ]
    scores = np.log(np.maximum(probabilities, 1e-30)).round(4).tolist()
    return rows[0] | {"top": rows} | ({"scores": scores} if asked.scores else {})


def mask_answer(model: ImageSegmenter, image: NDArray[np.uint8]) -> dict[str, Any]:
    """Return the share of each class, and the mask as a PNG in the colors of the classes."""
    row, classes = model.answer(image)
    shares = sorted(row["shares"].items(), key=lambda pair: -pair[1])
    place = {name: c for c, name in enumerate(model.classes)}
    mask = Image.fromarray(classes)
    mask.putpalette([value for color in model.palette for value in color])
    file = io.BytesIO()
    mask.save(file, "PNG")
    return {
        "probability": row["probability"],
        "width": mask.width,
        "height": mask.height,
        "classes": [{"class": name, "share": share, **rarity(model, place[name])} for name, share in shares],
        "mask": base64.b64encode(file.getvalue()).decode(),
    }


def rarity(model: ImageSegmenter, c: int) -> dict[str, Any]:
    return {
        "group": model.groups[c],
        "train": model.counts[c],
        "color": "#{:02x}{:02x}{:02x}".format(*model.palette[c]),
    }
