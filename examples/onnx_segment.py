"""Use an exported segmenter where neither gpaco nor torch is installed: numpy, OpenCV and onnxruntime are enough.

    gpaco export RUN --out model.onnx
    python examples/onnx_segment.py model.onnx image.jpg ...

Writes image.mask.png with the index of its class in each pixel. An image keeps its shape, as in `gpaco predict`: where
it is smaller than the input of the model it is padded with its edge pixels, where it is larger it is cut into windows.
"""

import json
import sys
from itertools import product
from pathlib import Path

import cv2
import numpy as np
import onnxruntime

model, *files = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["gpaco"])
height, width = about["input"]["size"]
down, right = about["stride"] or (max(1, height * 2 // 3), max(1, width * 2 // 3))


def seen(tall: int, wide: int) -> tuple[int, int]:
    """Height and width at which an image is seen: it fits into base_size."""
    shorter, longer = sorted(about["base_size"])
    factor = min(shorter / min(tall, wide), longer / max(tall, wide))
    return max(1, round(tall * factor)), max(1, round(wide * factor))


def starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows start; the last one ends with the image."""
    last = max(length - window, 0)
    return [*range(0, last, stride), last]


for file in files:
    image = cv2.imread(file, cv2.IMREAD_COLOR_RGB)
    if image is None:
        sys.exit(f"{file} cannot be read")
    tall, wide = image.shape[:2]
    rows, columns = seen(tall, wide)
    small = cv2.resize(image, (columns, rows), interpolation=cv2.INTER_LINEAR).transpose(2, 0, 1)
    small = np.pad(small, ((0, 0), (0, max(height - rows, 0)), (0, max(width - columns, 0))), mode="edge")
    summed = np.zeros((len(about["classes"]), *small.shape[1:]), np.float32)
    covered = np.zeros(small.shape[1:], np.float32)
    for top, left in product(starts(small.shape[1], height, down), starts(small.shape[2], width, right)):
        window = (..., slice(top, top + height), slice(left, left + width))
        summed[window] += session.run(["logits"], {"images": np.ascontiguousarray(small[window])[None]})[0][0]
        covered[window] += 1
    logits = (summed / covered)[:, :rows, :columns]
    classes = np.zeros((tall, wide), np.uint8)
    best = np.full((tall, wide), -np.inf, np.float32)
    for number, scores in enumerate(logits):  # class by class: all of them at full size may be gigabytes
        scores = cv2.resize(scores, (wide, tall), interpolation=cv2.INTER_LINEAR)
        classes[scores > best] = number
        best = np.maximum(best, scores)
    out = Path(file).with_suffix(".mask.png")
    cv2.imwrite(str(out), classes)
    found = [about["classes"][number] for number in np.unique(classes)]
    print(f"{out}: {', '.join(found)}")
