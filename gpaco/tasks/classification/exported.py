"""A classifier in an ONNX file, for prediction. Needs no torch."""

from collections.abc import Sequence

import numpy as np

from gpaco.data.images import Pixels
from gpaco.data.views.tested import TestView, resized_by_pillow, sized
from gpaco.errors import UserError
from gpaco.metrics.classification import adjust
from gpaco.models.onnx_file import OnnxFile
from gpaco.tasks.classification.logits import Logits, wanted_prior
from gpaco.tasks.classification.rows import ImageClassifier, Seen


def open_classifier(file: OnnxFile, prior: str | None = None) -> ImageClassifier:
    """Return the model in a file, adjusted to the class distribution `prior`, if given."""
    about = file.about
    classes, counts = tuple(about["classes"]), about["counts"] and tuple(about["counts"])
    view = TestView(about["input"]["size"][0], about["resize"], about["whole"], about["interpolation"])
    assumed = None if about["shares"] is None else np.log(about["shares"])
    wanted = assumed
    if prior is not None:
        if assumed is None or (prior == "train" and counts is None):
            raise UserError(
                "this file does not have the number of training images per class",
                "leave out --prior, or export a run that has them",
            )
        wanted = wanted_prior(prior, classes, counts)

    def see(image: Pixels) -> Seen:
        return [sized(image, view, resized_by_pillow)]

    def logits(images: Sequence[Seen]) -> Logits:
        raw = file.logits(np.ascontiguousarray(np.stack([image for (image,) in images]).transpose(0, 3, 1, 2)))
        return raw if wanted is assumed or wanted is None or assumed is None else adjust(raw, assumed, wanted)

    return ImageClassifier(
        name=file.path.name,
        classes=classes,
        counts=counts,
        groups=about["groups"] and tuple(about["groups"]),
        assumed=wanted,
        least=view.least,
        see=see,
        logits=logits,
    )
