"""CamVid at reduced resolution: cross entropy against the same with the pixel loss, equal budget, several seeds.

    python benchmarks/camvid.py DATA --weights tf_efficientnet_lite0.safetensors --out DIR

DATA is CamVid with 11 classes in SegNet's layout (train/, trainannot/, test/, testannot/). DeepLabV3+ on
EfficientNet-Lite0 pretrained on ImageNet-1k, pictures of 360 x 480 seen at 144 x 192, and scored at their own size. The
last epoch counts: there is nothing to choose, so the validation part is not used. All variants share every setting but
those named in `VARIANTS`, also order and crops for a seed.

Every run is a folder in DIR; the same command goes on where it stopped. camvid.csv has a row for each run as soon as it
is done: mIoU, and the mean IoU of the four classes with the fewest training pixels. When all are done the table of
docs/segmentation.md is printed: means over seeds, half of their 95 % interval, and differences paired by seed.
"""

import argparse
import csv
import time
from pathlib import Path
from typing import Any

from loss import machine

from gpaco import train
from gpaco.comparison import interval
from gpaco.run import Run

VARIANTS = {
    "CE": ["method.name=ce"],
    "CE + GPaCo": ["method.name=gpaco"],
    "CE + GPaCo, balanced pixels": ["method.name=gpaco", "segmentation.sampling=balanced"],
}
SETTINGS = [
    "data.validation=0",
    "model.name=deeplabv3plus-efficientnet-lite0",
    "segmentation.base_size=[144,192]",
    "segmentation.crop=[128,160]",
    "segmentation.channels=64",
    "segmentation.pixels=1024",  # of 32 x 40 positions
    "train.batch_size=8",
    "train.workers=0",
]
RARE = 4
FIELDS = (
    "variant",
    "seed",
    "epochs",
    "miou",
    "rare",
    "boundary_iou",
    "pixel_accuracy",
    "classes",
    "seconds",
    "machine",
)


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
        "machine": machine(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds with half of the 95 % interval, and the difference to the first variant paired by seed."""
    lines = ["| | mIoU | four rarest | boundary IoU | mIoU - CE | four rarest - CE |", "|---|---|---|---|---|---|"]

    def cell(values: list[float], sign: str = "") -> str:
        found = interval(values)
        half = "" if found["interval"] is None else f" ± {100 * found['interval']:.1f}"
        return f"{100 * found['mean']:{sign}.1f}{half}"

    by = {name: {row["seed"]: row for row in rows if row["variant"] == name} for name in VARIANTS}
    first = by[next(iter(VARIANTS))]
    for name, mine in by.items():
        means = [cell([row[key] for row in mine.values()]) for key in ("miou", "rare", "boundary_iou")]
        pairs = [
            "" if mine is first else cell([mine[seed][key] - first[seed][key] for seed in mine], "+")
            for key in ("miou", "rare")
        ]
        lines.append(f"| {name} | {' | '.join([*means, *pairs])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    data = without_validation(options.data, options.out)
    path = options.out / "camvid.csv"
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for variant, own in VARIANTS.items():
            name = "".join(c if c.isalnum() else "-" for c in variant.lower())
            began = time.time()
            run = train(
                data,
                out=options.out / f"{name}-seed-{seed}",
                task="segmentation",
                weights=str(options.weights),
                epochs=options.epochs,
                seed=seed,
                settings=[*SETTINGS, *own],
                say=lambda line: None,
                show=lambda row: print(f"  epoch {row['epoch']}: loss {row['loss']:.3f}") if "epochs" in row else None,
            )
            seconds = sum(row["time"]["seconds"] for row in run.history)
            rows.append(figures(variant, seed, run, seconds))
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, FIELDS)
                writer.writeheader()
                writer.writerows(rows)
            last = rows[-1]
            took = f"{time.time() - began:.0f} s"
            print(
                f"{variant}, seed {seed}: mIoU {last['miou']:.4f}, four rarest {last['rare']:.4f}, {took}", flush=True
            )
    print(table(rows))


if __name__ == "__main__":
    main()
