"""Inference on whole images: sliding windows, several scales and mirrored images.

Logits are averaged over windows, probabilities over scales and mirrored images.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from gpaco.errors import UserError
from gpaco.losses.checks import at_least_float32
from gpaco.tasks.segmentation.windows import starts, usual_stride

Classify = Callable[[Tensor], Tensor]  # images (B, 3, H, W) -> logits (B, C, H, W)
Size = tuple[int, ...]  # height, width; empty if not set
BAND = 2**24  # probabilities in memory at a time: 64 MB


def predict_logits(classify: Classify, images: Tensor, *, window: Size, stride: Size) -> Tensor:
    """Return logits (B, C, H, W) of whole images, or the mean over all windows that cover a pixel.

    Windows start every `stride` pixels (two thirds of a window if empty); the last one in each direction is moved back
    to end with the image. A window larger than the image is the whole image.
    """
    if not window:
        return classify(images)
    height, width = images.shape[2:]
    stride = stride or usual_stride(window)
    summed: Tensor | None = None
    covered = images.new_zeros(1, 1, height, width)
    for top in starts(height, window[0], stride[0]):
        for left in starts(width, window[1], stride[1]):
            place = (..., slice(top, min(top + window[0], height)), slice(left, min(left + window[1], width)))
            logits = classify(images[place])
            if summed is None:
                summed = logits.new_zeros(len(images), logits.shape[1], height, width)
            summed[place] += logits
            covered[place] += 1
    assert summed is not None  # noqa: S101 - there is at least one window
    return summed / covered.to(summed)


def predict_probabilities(classify: Classify, images: Tensor, *, scales: Sequence[float], flip: bool) -> Tensor:
    """Return class probabilities (B, C, H, W): the mean over scales and, with `flip`, mirrored images."""
    size = images.shape[2:]
    summed: Tensor | None = None
    for scale in scales:
        scaled = rescaled(images, scale)
        for mirrored in (False, True)[: 1 + flip]:
            logits = classify(scaled.flip(3)).flip(3) if mirrored else classify(scaled)
            probabilities = resized(at_least_float32(logits), size).softmax(1)
            summed = probabilities if summed is None else summed.add_(probabilities)
    assert summed is not None  # noqa: S101 - there is at least one scale
    return summed.div_(len(scales) * (1 + flip))


def check_scales(scales: Sequence[float]) -> None:
    """Raise an error if a scale is not a number above 0."""
    if not scales or not all(0 < scale < math.inf for scale in scales):
        raise UserError(f"scales must be numbers above 0, got {list(scales)}", "for example 0.5, 1.0, 1.5")


def predict_classes(
    classify: Classify, images: Tensor, *, scales: Sequence[float], flip: bool
) -> tuple[Tensor, Tensor]:
    """Return the most probable class of each pixel and its probability, each (B, H, W); see `predict_probabilities`.

    With one scale and no mirroring, the probabilities of all classes at all pixels are never in memory at once: a
    large photograph would need gigabytes.
    """
    if len(scales) > 1 or flip:
        best = predict_probabilities(classify, images, scales=scales, flip=flip).max(1)
        return best.indices, best.values
    size = images.shape[2:]
    logits = classify(rescaled(images, scales[0]))
    height = max(1, BAND // (logits.shape[0] * logits.shape[1] * size[1]))
    bands = [slice(top, min(top + height, size[0])) for top in range(0, size[0], height)]
    parts = [enlarged(logits, size, rows).softmax(1).max(1) for rows in bands]
    return torch.cat([part.indices for part in parts], 1), torch.cat([part.values for part in parts], 1)


def rescaled(images: Tensor, scale: float) -> Tensor:
    height, width = images.shape[2:]
    return resized(images, (max(1, round(height * scale)), max(1, round(width * scale))))


def resized(images: Tensor, size: Size) -> Tensor:
    """Return images or logits at another height and width, by bilinear interpolation between pixel centers."""
    if tuple(images.shape[2:]) == tuple(size):
        return images
    return F.interpolate(images, size, mode="bilinear", align_corners=False)


def enlarged(logits: Tensor, size: Size, rows: slice) -> Tensor:
    """Return some rows of `resized(logits, size)`, in at least float32."""
    logits, height = at_least_float32(logits), logits.shape[2]
    place = torch.arange(rows.start, rows.stop, dtype=logits.dtype, device=logits.device)
    place = ((place + 0.5) * (height / size[0]) - 0.5).clamp(0, height - 1)
    above = place.long()
    below = (above + 1).clamp(max=height - 1)
    share = (place - above)[:, None]
    part = torch.lerp(logits[:, :, above], logits[:, :, below], share)
    return resized(part, (rows.stop - rows.start, size[1]))
