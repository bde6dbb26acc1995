"""Does --amp bf16 save time on this processor? Images per second with float32 and bf16, one thread.

    python benchmarks/precision.py        # benchmarks/results/precision.csv

Forward and backward passes of small ResNets (256 images of 32 pixels) and of ResNet-18 (32 images of 128 pixels), and
embedding with EfficientNet-Lite0 (8 images of 224 pixels, no gradients), all in the memory layout channels_last. Best
of several rounds taken in turn. Rows of other machines stay in the file.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from table import machine, origin, read, rewrite
from torch import nn

from gpaco.models import backbones
from gpaco.system.distributed import choose_device
from gpaco.system.precision import autocast, bf16_is_fast

RESULTS = Path(__file__).parent / "results" / "precision.csv"
SHAPES = {  # network: images, pixels, rounds, whether it trains
    "resnet8": (256, 32, 12, True),
    "resnet32": (256, 32, 8, True),
    "resnet18": (32, 128, 8, True),
    "tf_efficientnet_lite0": (8, 224, 20, False),
}


def step(network: nn.Module, pixels: torch.Tensor, device: torch.device, amp: str, trains: bool) -> None:
    with torch.set_grad_enabled(trains), autocast(device, amp):
        features = network.train(trains)(pixels)
    if trains:
        features.float().square().mean().backward()


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main() -> None:
    torch.set_num_threads(1)
    device, rows = choose_device("cpu"), []
    print(f"instructions for bf16: {'yes' if bf16_is_fast(device) else 'no'}")
    for name, (images, size, rounds, trains) in SHAPES.items():
        network = backbones.build(name, size=size, weights="none")[0].to(memory_format=torch.channels_last)
        pixels = torch.randn(images, 3, size, size).contiguous(memory_format=torch.channels_last)
        actions = {amp: partial(step, network, pixels, device, amp, trains) for amp in ("off", "bf16")}
        times = [{amp: seconds(action) for amp, action in actions.items()} for _ in range(rounds + 1)][1:]
        best = {amp: min(one[amp] for one in times) for amp in actions}
        row = {"network": name, "pixels": size, "batch": images, "what": "training" if trains else "embedding"}
        row |= {"float32": round(images / best["off"], 1), "bf16": round(images / best["bf16"], 1)}
        rows.append({**row, "ratio": round(best["off"] / best["bf16"], 2)})
        print(rows[-1], flush=True)
    others = [row for row in read(RESULTS) if row["machine"] != machine()]
    rewrite(RESULTS, [*others, *({**row, **origin()} for row in rows)])


if __name__ == "__main__":
    main()
