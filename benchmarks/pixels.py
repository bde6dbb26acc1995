"""The loss among pixels: time and memory compared with the released formula, and its share of a training step.

    python benchmarks/pixels.py [--out benchmarks/results] [--quick]

1. One image with a map of 128 x 256 (a crop of 512 x 1,024), 150 classes, embeddings of 128, forward and backward:
   8,192, 16,384 and all 32,768 positions as anchors. "released" is the formula of the released code, transcribed from
   its description, with matrices of (anchors, classes + anchors). What would need more than 70% of the machine's
   memory is not run but extrapolated from the largest size that was: by the square of the anchors. Memory is the rise
   of the peak resident size in a process of its own. First both are held against each other on a smaller map.
2. A training step of DeepLabV3+ on ResNet-18 as in the paper's table (19 classes, decoder 128 wide) with crops of
   360 x 360 (a map of 90 x 90 = 8,100 positions), auxiliary head included: cross entropy alone, with the loss among
   4,096 pixels of each image, and among all of them.

Times are medians of rounds in which all contestants take their turn. Writes pixels.csv and prints its table. About
five minutes on two quiet cores.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from loss import in_a_new_process, rise
from table import write

ANCHORS = (8192, 16384, 32768)
CONTESTANTS = ("released", "gpaco")
HEIGHT, WIDTH, CLASSES, DIM = 128, 256, 150, 128
CROP, BATCH, STEP_CLASSES, CHANNELS = 360, 2, 19, 128
LIMIT = 0.7 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # bytes


def contestant(name: str, anchors: int, side: int = 1) -> Callable[[], float]:
    """A function that does one forward and backward pass and returns the loss; `side` times smaller maps to try it."""
    import torch
    from torch import Tensor
    from torch.nn import functional as F

    from gpaco import pixel_gpaco_loss

    torch.manual_seed(0)
    height, width = HEIGHT // side, WIDTH // side
    logits = torch.randn(1, CLASSES, height, width, requires_grad=True)
    embeddings = F.normalize(torch.randn(1, DIM, height, width), dim=1).requires_grad_()
    masks = torch.randint(CLASSES, (1, height, width))
    alpha, temperature = 0.01, 0.07

    def released() -> Tensor:
        drawn = torch.randperm(height * width)[:anchors]
        z, scores, labels = embeddings[0].flatten(1)[:, drawn].t(), logits[0].flatten(1)[:, drawn].t(), masks.flatten()
        labels = labels[drawn]
        same = (labels[:, None] == labels[None]).float()
        others = torch.ones_like(same).fill_diagonal_(0)
        weights = torch.cat([F.one_hot(labels, CLASSES).float(), alpha * same * others], 1)
        part = torch.cat([torch.ones_like(scores), others], 1)
        scores = torch.cat([scores, z @ z.t() / temperature], 1)
        scores = scores - scores.max(1, keepdim=True).values.detach()
        log_p = scores - torch.log((scores.exp() * part).sum(1, keepdim=True) + 1e-12)
        return -((weights * log_p).sum(1) / weights.sum(1)).mean()

    def ours() -> Tensor:
        return pixel_gpaco_loss(logits, embeddings, masks, pixels=anchors, alpha=alpha, temperature=temperature)

    def run() -> float:
        embeddings.grad = logits.grad = None
        loss = (released if name == "released" else ours)()
        loss.backward()
        return loss.item()

    return run


def needed(name: str, anchors: int) -> float:
    """Bytes that a contestant is expected to need: the released formula holds fifteen such matrices at its peak."""
    return 15 * 4.0 * anchors * (anchors + CLASSES) if name == "released" else 0


def training_step(pixels: int | None) -> Callable[[], None]:
    """A function that does one training step; without `pixels` of cross entropy alone."""
    import torch

    from gpaco.recipes.settings import MethodSettings, Segmentation
    from gpaco.tasks.segmentation.losses import SceneLoss
    from gpaco.tasks.segmentation.network import build

    torch.manual_seed(0)
    network = build("smp_deeplabv3plus-resnet18", STEP_CLASSES, dim=DIM if pixels else 0, channels=CHANNELS)
    settings = Segmentation(pixels=pixels or -1)
    criterion = SceneLoss(MethodSettings(alpha=0.01, temperature=0.07), settings)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    images, masks = torch.randn(BATCH, 3, CROP, CROP), torch.randint(STEP_CLASSES, (BATCH, CROP, CROP))

    def run() -> None:
        loss = criterion(network(images), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def in_turn(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, one after the other in every round, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def measure(what: str, rounds: int, names: list[str], anchors: int) -> dict[str, float]:
    """One measurement, in this process."""
    if what == "memory":
        contestant(names[0], 64, side=8)()  # libraries are loaded and their buffers made
        return {"MB": rise(contestant(names[0], anchors))}
    if what == "time":
        one, other = (contestant(name, HEIGHT * WIDTH, side=8)() for name in CONTESTANTS)
        if abs(one - other) > 1e-4 * abs(one):
            raise ValueError(f"the released formula gives {one}, ours {other}")
        taken = in_turn({name: contestant(name, anchors) for name in names}, rounds)
        return {name: statistics.median(values) for name, values in taken.items()}
    taken = in_turn({name: training_step(int(name) or None) for name in names}, rounds)
    shares = {
        f"{name} share": statistics.median(a / b - 1 for a, b in zip(values, taken["0"], strict=True))
        for name, values in taken.items()
    }
    return {name: statistics.median(values) for name, values in taken.items()} | shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="try the script: one round, the smallest size, no files")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        what, rounds, names, anchors = json.loads(options.task)
        print(json.dumps(measure(what, rounds, names, anchors)))
        return

    rounds = 1 if options.quick else 5
    rows: list[dict[str, object]] = []
    last: dict[str, float] = {}  # of the released formula, where it was run last

    def add(what: str, name: str, anchors: int, seconds: float, mb: float | None, how: str) -> None:
        load = f"{os.getloadavg()[0]:.1f}"
        figures = {"seconds": round(seconds, 4), "MB": None if mb is None else round(mb, 1)}
        rows.append({"what": what, "contestant": name, "anchors": anchors, **figures, "how": how, "load": load})
        memory = "" if mb is None else f" {mb:9.1f} MB"
        print(f"{what}, {name}, {anchors:,} pixels: {seconds:.3f} s{memory}, {how}", flush=True)

    for anchors in ANCHORS[:1] if options.quick else ANCHORS:
        possible = [name for name in CONTESTANTS if needed(name, anchors) < LIMIT]
        seconds = in_a_new_process("time", rounds, possible, anchors, script=__file__)
        for name in CONTESTANTS:
            if name in possible:
                mb = in_a_new_process("memory", rounds, [name], anchors, script=__file__)["MB"]
                add("loss", name, anchors, seconds[name], mb, "measured")
                last = {"anchors": anchors, "seconds": seconds[name], "MB": mb} if name == "released" else last
            else:
                factor = (anchors / last["anchors"]) ** 2
                add("loss", name, anchors, factor * last["seconds"], factor * last["MB"], "extrapolated")
    steps = in_a_new_process("step", rounds, ["0", "4096", "8100"], 0, script=__file__)
    for name in ("0", "4096", "8100"):
        add("step", "cross entropy" if name == "0" else "with gpaco", int(name), steps[name], None, "measured")
        rows[-1]["share"] = "" if name == "0" else round(steps[f"{name} share"], 4)
    print()
    for anchors in ANCHORS[: len(rows) // 2]:
        pair = {str(row["contestant"]): row for row in rows if row["what"] == "loss" and row["anchors"] == anchors}
        if len(pair) == 2:
            times, memory = (float(str(pair["released"][k])) / float(str(pair["gpaco"][k])) for k in ("seconds", "MB"))
            note = "" if pair["released"]["how"] == "measured" else " (the released formula extrapolated)"
            print(f"{anchors:,} anchors: {times:.1f} times faster, {memory:.0f} times less memory{note}")
    for name in ("4096", "8100"):
        print(f"{int(name):,} pixels add {steps[f'{name} share']:.1%} to a training step")
    if not options.quick:
        write(options.out / "pixels.csv", rows)


if __name__ == "__main__":
    main()
