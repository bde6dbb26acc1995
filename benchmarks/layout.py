"""What the memory layout channels_last gives on a CPU: images per second of one thread in both layouts.

    python benchmarks/layout.py        # benchmarks/results/layout.csv

CPU time, so that other work matters little; medians of rounds taken in turn. Rows of other machines stay in the file.
"""

import statistics
import time
from pathlib import Path

import torch
from table import machine, origin, read, rewrite
from torch import nn

from gpaco.models import backbones

RESULTS = Path(__file__).parent / "results" / "layout.csv"
LAYOUTS = {"usual": torch.contiguous_format, "channels_last": torch.channels_last}
SHAPES = (  # network, images, pixels, whether it trains
    ("resnet8", 128, 32, True),
    ("resnet32", 128, 32, True),
    ("tf_efficientnet_lite0", 32, 96, True),
    ("mobilenetv3_small_100", 32, 128, True),
    ("resnet18", 16, 128, True),
    ("vit_tiny_patch16_224", 8, 224, True),
    ("resnet32", 256, 32, False),
    ("tf_efficientnet_lite0", 8, 224, False),
    ("resnet18", 8, 224, False),
)
ROUNDS = 5


def seconds(network: nn.Module, pixels: torch.Tensor, trains: bool) -> float:
    began = time.process_time()
    with torch.set_grad_enabled(trains):
        features = network.train(trains)(pixels)
    if trains:
        features.square().mean().backward()
    return time.process_time() - began


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for name, images, size, trains in SHAPES:
        pixels = torch.randn(images, 3, size, size)
        networks = {
            layout: backbones.build(name, size=size, weights="none").module.to(memory_format=form)
            for layout, form in LAYOUTS.items()
        }
        times = [{layout: seconds(one, pixels, trains) for layout, one in networks.items()} for _ in range(ROUNDS + 1)]
        found = {layout: statistics.median(one[layout] for one in times[1:]) for layout in LAYOUTS}
        row = {"network": name, "pixels": size, "batch": images, "what": "training" if trains else "prediction"}
        row |= {layout: round(images / value, 1) for layout, value in found.items()}
        rows.append(row | {"ratio": round(found["usual"] / found["channels_last"], 2)})
        print(rows[-1], flush=True)
    others = [row for row in read(RESULTS) if row["machine"] != machine()]
    rewrite(RESULTS, [*others, *({**row, **origin()} for row in rows)])


if __name__ == "__main__":
    main()
