"""Use an exported classifier where neither gpaco nor torch is installed: numpy, Pillow and onnxruntime are enough.

gpaco export RUN --out model.onnx
python examples/onnx_predict.py model.onnx image.jpg ...
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

if len(sys.argv) < 3:
    sys.exit("usage: onnx_predict.py model.onnx image.jpg ...")
model, *files = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["gpaco"])
height, width = about["input"]["size"]
resample = Image.Resampling[about["interpolation"].upper()]


def opened(path: str) -> Image.Image:
    """The image as gpaco reads it: upright, grays of 16 bits scaled to 8, white behind transparent parts, RGB."""
    stored = Image.open(path)
    image = ImageOps.exif_transpose(stored)
    if image.mode == "F" or image.mode.startswith("I"):
        values = np.asarray(image)
        if image.mode == "F" or values.min() < 0 or values.max() > 65535:
            raise ValueError("its values have neither 8 nor 16 bits")
        top = 65535 if stored.format == "PPM" else next(top for top in (255, 4095, 65535) if values.max() <= top)
        image = Image.fromarray(np.rint(values * (255 / top)).astype(np.uint8))
    if image.has_transparency_data:
        clear, image = image.convert("RGBA"), Image.new("RGB", image.size, "white")
        image.paste(clear, mask=clear.getchannel("A"))
    return image.convert("RGB")


def prepared(path: str) -> np.ndarray:
    """The image as the model was tested: whole, or the middle of it; (3, H, W) uint8."""
    image = opened(path)
    if about["whole"]:
        return np.asarray(image.resize((width, height), resample)).transpose(2, 0, 1)
    wide, tall = (about["resize"] * side // min(image.size) for side in image.size)
    image = image.resize((wide, tall), resample)
    left, top = round((wide - width) / 2), round((tall - height) / 2)
    return np.asarray(image.crop((left, top, left + width, top + height))).transpose(2, 0, 1)


unreadable = 0
for path in files:
    try:
        images = prepared(path)[None]  # any number of them at a time will do
    except Exception as error:  # damaged files make decoders raise nearly anything
        print(f"{path}: {' '.join(str(error).split())}", file=sys.stderr)
        unreadable += 1
        continue
    (logits,) = session.run(["logits"], {"images": images})
    probabilities = np.exp(logits[0] - logits[0].max())
    probabilities /= probabilities.sum()
    best = int(probabilities.argmax())
    print(f"{path}: {about['classes'][best]} ({probabilities[best]:.3f})")
sys.exit(1 if unreadable else 0)
