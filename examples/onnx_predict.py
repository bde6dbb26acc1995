"""Use an exported classifier where neither gpaco nor torch is installed: numpy, Pillow and onnxruntime are enough.

gpaco export RUN --out model.onnx
python examples/onnx_predict.py model.onnx image.jpg ...
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

model, *files = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["gpaco"])
height, width = about["input"]["size"]
resample = Image.Resampling[about["interpolation"].upper()]


def prepared(path: str) -> np.ndarray:
    """The image as the model was tested: whole, or the middle of it; (3, H, W) uint8."""
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    if about["whole"]:
        return np.asarray(image.resize((width, height), resample)).transpose(2, 0, 1)
    wide, tall = (about["resize"] * side // min(image.size) for side in image.size)
    image = image.resize((wide, tall), resample)
    left, top = round((wide - width) / 2), round((tall - height) / 2)
    return np.asarray(image.crop((left, top, left + width, top + height))).transpose(2, 0, 1)


images = np.stack([prepared(path) for path in files])
(logits,) = session.run(["logits"], {"images": images})
probabilities = np.exp(logits - logits.max(1, keepdims=True))
probabilities /= probabilities.sum(1, keepdims=True)
for path, row in zip(files, probabilities, strict=True):
    best = int(row.argmax())
    print(f"{path}: {about['classes'][best]} ({row[best]:.3f})")
