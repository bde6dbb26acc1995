"""Exported files against the models they came from: largest difference of logits, size, time of a picture.

    python benchmarks/export.py [--out benchmarks/results] [--rounds 5]

Networks with random weights and ten classes, at the sizes of IMAGES; each is written as ONNX and with torch.export,
compared as `gpaco export` does, then given eight pictures at a time, in turns with the model itself. Writes export.csv.
"""

import argparse
import csv
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from loss import machine
from torch import Tensor, nn

from gpaco import backbones
from gpaco.exporting import BATCHES, Answers, _difference, _pictures, _to_onnx, _to_torch
from gpaco.model import Classifier
from gpaco.run import Predictor
from gpaco.segmentation import network
from gpaco.segmentation.evaluating import ScenePredictor

IMAGES = {
    "resnet18": 224,
    "resnet50_cifar": 32,
    "tf_efficientnet_lite0": 96,
    "convnext_atto": 224,
    "vit_small_patch16_224": 224,
    "swin_tiny_patch4_window7_224": 224,
}
SCENES = {"deeplabv3plus-resnet18": (120, 160), "upernet-swin-tiny": (120, 160)}
KINDS = {".onnx": _to_onnx, ".pt2": _to_torch}
CLASSES = [str(k) for k in range(10)]


def classifier(name: str, size: int) -> nn.Module:
    backbone = backbones.build(name, size=size)
    about: dict[str, Any] = {"classes": CLASSES, "mean": backbone.mean, "std": backbone.std, "counts": [1] * 10}
    about |= {"tuned": None, "assumes": "uniform", "centre_share": None}
    model = Classifier(backbone.module, backbone.num_features, len(CLASSES))
    return Answers(Predictor(model, about), prior=None, unbiased=False).eval()


def segmenter(name: str) -> nn.Module:
    about = {"classes": CLASSES, "mean": [0.5] * 3, "std": [0.5] * 3}
    return ScenePredictor(network.build(name, len(CLASSES), dim=0, aux=False), about).eval()


@torch.inference_mode()
def seconds(answers: dict[str, Callable[[Tensor], Tensor]], images: Tensor, rounds: int) -> dict[str, float]:
    """The median time of each, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in answers}
    for _ in range(rounds + 1):
        for name, answer in answers.items():
            began = time.perf_counter()
            answer(images)
            times[name].append(time.perf_counter() - began)
    return {name: median(taken[1:]) for name, taken in times.items()}


def measured(name: str, model: nn.Module, size: list[int], task: str, rounds: int) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    answers: dict[str, Callable[[Tensor], Tensor]] = {"model": model}
    with tempfile.TemporaryDirectory() as folder:
        for kind, write in KINDS.items():
            path = Path(folder) / f"file{kind}"
            answers[kind] = write(model, _pictures(2, size), {}, path)
            difference = _difference(model, answers[kind], size, BATCHES[task])
            row = {"model": name, "size": "x".join(map(str, size)), "kind": kind, "difference": f"{difference:.1e}"}
            rows.append(row | {"megabytes": f"{path.stat().st_size / 1e6:.1f}"})
        taken = seconds(answers, _pictures(8, size), rounds)
    return [row | {"time of the model's": f"{taken[row['kind']] / taken['model']:.2f}"} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for name, size in IMAGES.items():
        rows += measured(name, classifier(name, size), [size, size], "classification", options.rounds)
        print(*rows[-2:], sep="\n", flush=True)
    for name, shape in SCENES.items():
        rows += measured(name, segmenter(name), list(shape), "segmentation", options.rounds)
        print(*rows[-2:], sep="\n", flush=True)
    with (options.out / "export.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "machine"])
        writer.writeheader()
        writer.writerows(row | {"machine": machine()} for row in rows)


if __name__ == "__main__":
    main()
