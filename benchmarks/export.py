"""Exported files against the models they came from: largest difference of logits, and size.

    python benchmarks/export.py [--out benchmarks/results]

Networks with random weights and ten classes, at the sizes of IMAGES and SCENES; each is written as ONNX and with
torch.export, and compared as `gpaco export` does. Writes export.csv.
"""

import argparse
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from table import write
from torch import nn

from gpaco.models import backbones
from gpaco.models.classifier import Classifier
from gpaco.models.export import compare_logits, noise_images, write_onnx, write_torch
from gpaco.tasks.classification.export import FinalLogits
from gpaco.tasks.classification.predictor import Predictor
from gpaco.tasks.segmentation import network
from gpaco.tasks.segmentation.predictor import ScenePredictor

IMAGES = {
    "resnet18": 224,
    "resnet50_cifar": 32,
    "tf_efficientnet_lite0": 96,
    "convnext_atto": 224,
    "vit_small_patch16_224": 224,
    "swin_tiny_patch4_window7_224": 224,
}
SCENES = {"smp_deeplabv3plus-resnet18": (120, 160), "upernet-swin-tiny": (120, 160)}
KINDS = {".onnx": write_onnx, ".pt2": write_torch}
CLASSES = [str(k) for k in range(10)]


def classifier(name: str, size: int) -> nn.Module:
    backbone = backbones.build(name, size=size)
    mean, std, _ = backbones.usual_input(name)
    card: Any = SimpleNamespace(classes=CLASSES, mean=mean, std=std, counts=(1,) * 10, tuned=None)
    model = Classifier(backbone.module, backbone.num_features, len(CLASSES))
    return FinalLogits(Predictor(model, card), prior=None, unbiased=False).eval()


def segmenter(name: str) -> nn.Module:
    card: Any = SimpleNamespace(classes=CLASSES, mean=(0.5,) * 3, std=(0.5,) * 3)
    return ScenePredictor(network.build(name, len(CLASSES), dim=0, aux=False), card).eval()


def measured(name: str, model: nn.Module, size: list[int], batches: tuple[int, ...]) -> list[dict[str, str]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, write in KINDS.items():
            path = Path(folder) / f"file{kind}"
            exported = write(model, noise_images(2, size), {}, path)
            difference = compare_logits(model, exported, size, batches)
            row = {"model": name, "size": "x".join(map(str, size)), "kind": kind, "difference": f"{difference:.1e}"}
            rows.append(row | {"megabytes": f"{path.stat().st_size / 1e6:.1f}"})
    print(*rows, sep="\n", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for name, size in IMAGES.items():
        rows += measured(name, classifier(name, size), [size, size], (1, 2, 7))
    for name, shape in SCENES.items():
        rows += measured(name, segmenter(name), list(shape), (1, 2))
    write(options.out / "export.csv", rows)


if __name__ == "__main__":
    main()
