"""From a network to a whole picture: sliding windows, several scales, mirrored pictures, each averaged exactly.

Logits are averaged over windows, probabilities over scales and mirrored pictures.
"""

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.nn import functional as F

from gpaco.errors import UserError

Classify = Callable[[Tensor], Tensor]  # images (B, 3, H, W) -> logits (B, C, H, W)
Size = tuple[int, int]  # height, width


def predict_logits(
    classify: Classify, images: Tensor, *, window: Size | None = None, stride: Size | None = None
) -> Tensor:
    """Logits (B, C, H, W) of whole images, or the mean over all windows that cover a pixel.

    Windows start every `stride` pixels (two thirds of a window unless given); the last one in each direction is moved
    back so that it ends with the picture. A window larger than the picture is the picture.
    """
    if window is None:
        return classify(images)
    height, width = images.shape[2:]
    stride = stride or (max(1, window[0] * 2 // 3), max(1, window[1] * 2 // 3))
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


def starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows start so that they cover `length` pixels.

    >>> starts(10, 4, 3), starts(11, 4, 3), starts(3, 4, 3)
    ([0, 3, 6], [0, 3, 6, 7], [0])
    """
    if window < 1 or not 1 <= stride <= window:
        raise UserError(
            f"a stride of {stride} pixels does not cover windows of {window}",
            "choose a stride from 1 to the size of the window",
        )
    last = max(length - window, 0)
    return [*range(0, last, stride), last]


def predict_probabilities(
    classify: Classify,
    images: Tensor,
    *,
    size: Size | None = None,
    window: Size | None = None,
    stride: Size | None = None,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
) -> Tensor:
    """Class probabilities (B, C, H, W), the mean over scales and, with `flip`, mirrored pictures.

    `size` is the height and width of the result, the images' own unless given: a picture that was resized for the
    network comes back at the size of its mask.
    """
    if not scales or min(scales) <= 0:
        raise UserError(f"scales must be numbers above 0, got {list(scales)}", "for example 0.5, 1.0, 1.5")
    height, width = images.shape[2:]
    size = size or (height, width)
    summed: Tensor | None = None
    for scale in scales:
        scaled = resized(images, (max(1, round(height * scale)), max(1, round(width * scale))))
        for mirrored in (False, True)[: 1 + flip]:
            logits = predict_logits(classify, scaled.flip(3) if mirrored else scaled, window=window, stride=stride)
            logits = logits.flip(3) if mirrored else logits
            probabilities = resized(logits.float(), size).softmax(1)
            summed = probabilities if summed is None else summed + probabilities
    assert summed is not None  # noqa: S101 - there is at least one scale
    return summed / (len(scales) * (1 + flip))


def resized(images: Tensor, size: Size) -> Tensor:
    """Images or logits at another height and width, by bilinear interpolation between pixel centres."""
    if tuple(images.shape[2:]) == tuple(size):
        return images
    return F.interpolate(images, size, mode="bilinear", align_corners=False)
