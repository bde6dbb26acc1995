"""CamVid at reduced resolution: cross entropy against the same with the pixel loss, equal budget, several seeds.

    python benchmarks/camvid.py DATA --weights tf_efficientnet_lite0.safetensors --out DIR

DATA is CamVid with 11 classes in SegNet's layout (train/, trainannot/, test/, testannot/). DeepLabV3+ on
EfficientNet-Lite0 pretrained on ImageNet-1k (output stride 16), images of 360 x 480 resized to 144 x 192 and scored at
their own size. The last epoch counts, so the validation split is not used. All variants share every setting but those
named in `VARIANTS`, including order and crops for a seed.

Two runs train at a time, each with one thread (--jobs): about forty minutes in all on two cores. Every run is a folder
in DIR; rerun the same command to resume. camvid.csv has a row for each run as soon as it is done: mIoU, and
the mean IoU of the four classes with the fewest training pixels. When all are done a table is printed: means over
seeds, half of their 95% interval, and differences paired by seed.
"""

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from table import with_interval, write

from gpaco import train
from gpaco.training.run import Run

VARIANTS = {
    "CE": ["method.name=ce"],
    "CE + GPaCo": ["method.name=gpaco", "segmentation.weight=1"],
}
SETTINGS = [
    "data.validation=0",
    "model.name=smp_deeplabv3plus-efficientnet-lite0",
    "segmentation.base_size=[144,192]",
    "segmentation.crop=[96,128]",
    "segmentation.channels=64",
    "segmentation.output_stride=16",
    "segmentation.pixels=512",  # of 24 x 32 positions: two thirds of them, so that it matters how they are drawn
    "train.batch_size=4",
    "optimizer.name=sgd",
    "optimizer.lr=0.05",  # of 0.01, 0.05, 0.1: the best of cross entropy on the validation part, four epochs
    "train.workers=0",
    "train.report=false",
]
RARE = 4


def without_validation(data: Path, out: Path) -> Path:
    """A folder that shows training and test data only."""
    folder = out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "trainannot", "test", "testannot"):
        if not (folder / name).exists():
            (folder / name).symlink_to((data / name).resolve())
    return folder


def figures(variant: str, seed: int, run: Run, seconds: float) -> dict[str, Any]:
    metrics = run.metrics
    rarest = sorted(metrics["per_class"], key=lambda row: row["train"])[:RARE]
    return {
        "variant": variant,
        "seed": seed,
        "epochs": run.recipe.train.epochs,
        "miou": round(metrics["miou"], 5),
        "rare": round(sum(row["iou"] for row in rarest) / RARE, 5),
        "boundary_iou": round(metrics["boundary_iou"], 5),
        "pixel_accuracy": round(metrics["pixel_accuracy"], 5),
        "classes": " ".join(f"{row['name']}={row['iou']:.4f}" for row in metrics["per_class"]),
        "seconds": round(seconds),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds with half of the 95% interval, and the difference to the first variant paired by seed."""
    lines = ["| | mIoU | four rarest | boundary IoU | mIoU - CE | four rarest - CE |", "|---|---|---|---|---|---|"]
    by = {name: {row["seed"]: row for row in rows if row["variant"] == name} for name in VARIANTS}
    first = by[next(iter(VARIANTS))]
    for name, mine in by.items():
        means = [with_interval([row[key] for row in mine.values()]) for key in ("miou", "rare", "boundary_iou")]
        pairs = [
            "" if mine is first else with_interval([mine[seed][key] - first[seed][key] for seed in mine], "+")
            for key in ("miou", "rare")
        ]
        lines.append(f"| {name} | {' | '.join([*means, *pairs])} |")
    return "\n".join(lines)


def train_one(variant: str, seed: int, options: argparse.Namespace) -> Run:
    """Train or resume; a finished run is only read."""
    return train(
        without_validation(options.data, options.out),
        out=folder_of(options.out, variant, seed),
        task="segmentation",
        weights=str(options.weights),
        epochs=options.epochs,
        seed=seed,
        settings=[*SETTINGS, *VARIANTS[variant]],
        say=lambda line: None,
    )


def folder_of(out: Path, variant: str, seed: int) -> Path:
    return out / f"{'-'.join(re.findall(r'[a-z]+', variant.lower()))}-seed-{seed}"


def in_a_process(variant: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run in a process with one thread, and its metrics."""
    command = [sys.executable, __file__, options.data, "--weights", options.weights, "--out", options.out]
    command += ["--epochs", options.epochs, "--one", variant, "--seeds", seed]
    done = subprocess.run([str(word) for word in command], env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(done.returncode)
    run = Run(folder_of(options.out, variant, seed))
    return figures(variant, seed, run, sum(row["time"]["seconds"] for row in run.history))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--one", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        train_one(options.one, options.seeds, options)
        return

    rows: list[dict[str, Any]] = []
    without_validation(options.data, options.out)
    cells = [(variant, seed) for seed in range(options.seeds) for variant in VARIANTS]
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda cell: in_a_process(cell[0], cell[1], options), cells):
            rows.append(row)
            write(options.out / "camvid.csv", rows)
            shown = f"mIoU {row['miou']:.4f}, four rarest {row['rare']:.4f}, {row['seconds']} s of training"
            print(f"{row['variant']}, seed {row['seed']}: {shown}", flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
