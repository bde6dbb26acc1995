"""A segmenter in an ONNX file, for prediction. Needs no torch."""

from functools import partial
from itertools import product

import cv2
import numpy as np
from numpy.typing import NDArray

from gpaco.models.onnx_file import OnnxFile
from gpaco.tasks.segmentation.masks import ImageSegmenter
from gpaco.tasks.segmentation.transforms import fitting
from gpaco.tasks.segmentation.windows import starts, usual_stride


def open_segmenter(file: OnnxFile) -> ImageSegmenter:
    """Return the model in a file."""
    about = file.about
    return ImageSegmenter(
        name=file.path.name,
        classes=tuple(about["classes"]),
        palette=tuple(tuple(color) for color in about["palette"]),
        counts=tuple(about["counts"]),
        groups=tuple(about["groups"]),
        segment=partial(segment_by_file, file),
    )


def segment_by_file(file: OnnxFile, image: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return the class of each pixel of an image (H, W, 3) and its probability, each (H, W).

    An image that is smaller than the input of the model is padded; a larger one is split into windows.
    """
    about, (tall, wide) = file.about, image.shape[:2]
    height, width = about["input"]["size"]
    factor = fitting((tall, wide), about["base_size"])
    rows, columns = max(1, round(tall * factor)), max(1, round(wide * factor))
    planes = np.asarray(cv2.resize(image, (columns, rows), interpolation=cv2.INTER_LINEAR), np.uint8).transpose(2, 0, 1)
    small: NDArray[np.uint8] = np.pad(
        planes, ((0, 0), (0, max(height - rows, 0)), (0, max(width - columns, 0))), mode="edge"
    )
    down, right = about["stride"] or usual_stride((height, width))
    summed = np.zeros((len(about["classes"]), *small.shape[1:]), np.float32)
    covered = np.zeros(small.shape[1:], np.float32)
    for top, left in product(starts(small.shape[1], height, down), starts(small.shape[2], width, right)):
        window = (..., slice(top, top + height), slice(left, left + width))
        summed[window] += file.logits(np.ascontiguousarray(small[window])[None])[0]
        covered[window] += 1
    logits = (summed / covered)[:, :rows, :columns]
    classes = np.zeros((tall, wide), np.uint8)
    best, total = np.full((tall, wide), -np.inf, np.float32), np.zeros((tall, wide), np.float32)
    for number, scores in enumerate(logits):  # class by class: all of them at full size may be gigabytes
        score = cv2.resize(scores, (wide, tall), interpolation=cv2.INTER_LINEAR)
        higher = np.maximum(best, score)
        total = total * np.exp(best - higher) + np.exp(score - higher)
        classes[score > best] = number
        best = higher
    return classes, np.asarray(1 / total, np.float32)
