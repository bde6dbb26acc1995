"""A segmenter ready to be exported."""

from collections.abc import Sequence
from operator import le

from gpaco.errors import UserError
from gpaco.metrics.segmentation import share_groups
from gpaco.tasks.exportable import READING, Exportable, Size, describe_export
from gpaco.tasks.segmentation.card import fitted_size
from gpaco.tasks.segmentation.network import encoder_weights
from gpaco.tasks.segmentation.predictor import load_segmenter
from gpaco.training.run import Run


def exportable(runs: Sequence[Run], *, prior: str | None, unbiased: bool, size: Size | None, which: str) -> Exportable:
    """Return the model of a run for images of a size; by default, the image size in training."""
    if prior is not None or unbiased:
        raise UserError("--prior and --unbiased are for classifiers", "leave them out")
    if len(runs) > 1:
        raise UserError("segmenters are exported one at a time", "give one run")
    run = runs[0]
    predictor = load_segmenter(run, which=which)
    card = predictor.card
    height, width = size or card.window or fitted_size(card)
    if height < 1 or width < 1:
        raise UserError(f"--size must be at least 1x1, got {height}x{width}", "for example --size 360x480")
    groups = share_groups(card.counts, card.many, card.few).tolist()
    about = describe_export(run.recipe, card, groups, (height, width), ["N", "C", "H", "W"]) | {
        "steps": [
            *READING,
            "resize the image so that it fits into base_size (shorter side, longer side)",
            "if it is smaller than the input size, pad it with its edge pixels",
            "if it is larger, use a sliding window of the input size, moved by stride (2/3 of the size by default); "
            "the last window ends with the image",
            "channels first, uint8",
            "average the logits where windows overlap, and remove the padding",
            "resize the logits to the size of the image; the class of a pixel is the one with the largest logit",
        ],
        "interpolation": "bilinear between pixel centers, without antialiasing",
        "palette": card.palette,
        "base_size": card.base_size,
        "window": card.window,
        "stride": card.stride if all(map(le, card.stride, (height, width))) else (),
    }
    return Exportable(predictor, encoder_weights(predictor.model.encoder), about, (1, 2))
