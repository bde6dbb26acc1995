"""What `gpaco.system.allocator` gives: images per second and peak memory, with and without it, in one run.

    python benchmarks/allocator.py [--steps 200] [--threads 2]

Each measurement is a new process: embedding by EfficientNet-Lite0 at 224 pixels, and training steps of three networks
with batch sizes that change from step to step. Rows go to benchmarks/results/allocator.csv; what has one is not
measured again.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from table import append, has

from gpaco.models import backbones
from gpaco.system.allocator import SWITCH, keep_freed_memory

CASES = (
    ("embedding", "tf_efficientnet_lite0"),
    ("training", "tf_efficientnet_lite0"),
    ("training", "resnet18"),
    ("training", "vit_small_patch16_224"),
)
SIZES = (16, 8, 12, 16, 4)  # images of a step, in turn


def measure(what: str, name: str, steps: int, threads: int) -> dict[str, float]:
    """Return images per second and the peak of the resident memory in MB, of this process."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    model = backbones.build(name).module.to(memory_format=torch.channels_last)
    model.train(what == "training")
    images = torch.randn(max(SIZES), 3, 224, 224).contiguous(memory_format=torch.channels_last)
    began, done = 0.0, 0
    for step in range(steps):
        if step == 5:  # warmed up
            began, done = time.perf_counter(), 0
        number = SIZES[step % len(SIZES)]
        with torch.set_grad_enabled(what == "training"):
            features = model(images[:number])
        if what == "training":
            model.zero_grad(set_to_none=True)
            features.square().mean().backward()
        done += number
    speed = done / (time.perf_counter() - began)
    return {"images_per_second": speed, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "allocator.csv")
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(measure(*CASES[options.case], options.steps, options.threads)))
        return
    for case, (what, name) in enumerate(CASES):
        key = {"what": what, "model": name, "threads": options.threads, "steps": options.steps}
        if has(options.results, key):
            continue
        found = {}
        for kept in ("0", "1"):
            words = [sys.executable, __file__, "--case", str(case), "--steps", str(options.steps)]
            words += ["--threads", str(options.threads)]
            output = subprocess.run(words, env=os.environ | {SWITCH: kept}, check=True, capture_output=True, text=True)
            found[kept] = json.loads(output.stdout)
        ratio = found["1"]["images_per_second"] / found["0"]["images_per_second"]
        more = found["1"]["megabytes"] / found["0"]["megabytes"]
        row = key | {
            "images_per_second_before": f"{found['0']['images_per_second']:.1f}",
            "images_per_second": f"{found['1']['images_per_second']:.1f}",
            "speed_ratio": f"{ratio:.2f}",
            "memory_ratio": f"{more:.2f}",
        }
        print(row, flush=True)
        append(options.results, row)


if __name__ == "__main__":
    main()
