"""Use an exported segmenter where neither gpaco nor torch is installed: numpy, OpenCV and onnxruntime are enough.

    gpaco export RUN --out model.onnx
    python examples/onnx_segment.py model.onnx picture.jpg ...

Writes picture.mask.png with the number of its class in each pixel. For models trained on whole pictures, not windows.
"""

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import onnxruntime

model, *files = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["gpaco"])
height, width = about["input"]["size"]

for file in files:
    picture = cv2.imread(file, cv2.IMREAD_COLOR_RGB)
    if picture is None:
        sys.exit(f"{file} cannot be read")
    tall, wide = picture.shape[:2]
    small = cv2.resize(picture, (width, height), interpolation=cv2.INTER_LINEAR)
    (logits,) = session.run(["logits"], {"images": small.transpose(2, 0, 1)[None]})
    classes = np.zeros((tall, wide), np.uint8)
    best = np.full((tall, wide), -np.inf, np.float32)
    for number, scores in enumerate(logits[0]):  # class by class: all of them at full size may be gigabytes
        scores = cv2.resize(scores, (wide, tall), interpolation=cv2.INTER_LINEAR)
        classes[scores > best] = number
        best = np.maximum(best, scores)
    out = Path(file).with_suffix(".mask.png")
    cv2.imwrite(str(out), classes)
    found = [about["classes"][number] for number in np.unique(classes)]
    print(f"{out}: {', '.join(found)}")
