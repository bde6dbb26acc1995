"""Images per second of `gpaco train` against a plain loop with timm's loader, and how fast a run starts.

    python benchmarks/speed.py [--out DIR] [--part loops|starts] [--quick]

loops: two loops train the same network with cross entropy: resnet8 on PNG files of 32 x 32, mobilenetv3_small_100, a
network so fast that reading and views count, on JPEG files of 500 x 375 with crops of 224. The plain loop is what
people write with `timm.data.create_loader`. Rates are those of the second epoch, in image-views, taken in turn three
times.

starts: `gpaco check` on 20,000 JPEG files, and the time and memory of a start on 1,300,000 tiny files, all made for it.
--quick has a tenth of each and writes nothing. It needs 10 GB of disk.

Rows go to benchmarks/results/speed.csv; what has one is not measured again. Two quiet cores, about an hour.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from table import append, has, read

RESULTS = Path(__file__).parent / "results" / "speed.csv"
ROUNDS = 3


def make_images(folder: Path, number: int, size: tuple[int, int], ending: str, classes: int = 10) -> Path:
    """Write images that compress like photographs, a smooth ground with some noise, unless the folder is there."""
    folder = folder.with_name(f"{folder.name}-{number}")
    if folder.is_dir():
        return folder
    whole, folder = folder, folder.with_name(f"{folder.name}.partial")
    draw = np.random.default_rng(0)
    for split, count in (("train", number), ("test", 20)):
        for k in range(count):
            path = folder / split / f"class{k % classes}" / f"{k}{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(draw.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(
                size, Image.Resampling.BICUBIC
            )
            noise = draw.normal(0, 6, (size[1], size[0], 3))
            Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return folder.rename(whole)


def ours(data: Path, model: str, size: int, batch: int, workers: int, views: int) -> float:
    """Image-views per second of gpaco train, by its own log."""
    with tempfile.TemporaryDirectory() as out:
        words = ["train", data, "--method", "ce", "--model", model, "--weights", "none", "--train", "all"]
        words += ["--size", size, "--batch-size", batch, "--epochs", 2, "--workers", workers, "--validation", 0]
        words += ["--set", "train.report=false", "--set", f"views.second={'plain' if views == 2 else ''}"]
        words += ["--set", "views.first=plain", "--out", f"{out}/run"]
        subprocess.run([sys.executable, "-m", "gpaco", *map(str, words)], check=True, capture_output=True)
        last = Path(out, "run", "metrics.jsonl").read_text().splitlines()[-1]
        rate: float = json.loads(last)["time"]["images_per_second"]
        return rate * views


def plain(data: Path, model: str, size: int, batch: int, workers: int) -> float:
    """Images per second of a loop with timm's loader."""
    import timm
    from timm.data import create_dataset, create_loader

    from gpaco.models.backbones import build

    body = build(model) if model.startswith("resnet8") else None
    network = (
        torch.nn.Sequential(body.module, torch.nn.Linear(body.num_features, 10))
        if body
        else timm.create_model(model, num_classes=10)
    ).to(memory_format=torch.channels_last)
    dataset = create_dataset("", root=str(data / "train"))
    loader = create_loader(
        dataset, (3, size, size), batch, is_training=True, use_prefetcher=False, num_workers=workers,
        device=torch.device("cpu"), hflip=0.5, color_jitter=0.0, persistent_workers=False,
    )  # fmt: skip
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(2):  # the second epoch counts, as in our log
        seen, start = 0, time.perf_counter()
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(network(images.to(memory_format=torch.channels_last)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(images)
    return seen / (time.perf_counter() - start)


def compare_loops(folder: Path, quick: bool) -> None:
    small = make_images(folder / "small", 1280 if quick else 5120, (32, 32), ".png")
    photos = make_images(folder / "photos", 128 if quick else 512, (500, 375), ".jpg")
    for data, model, size, batch in ((small, "resnet8", 32, 128), (photos, "mobilenetv3_small_100", 224, 32)):
        for workers in (0, 1, 2):
            for views in (1, 2):
                settings = f"size={size} batch={batch} workers={workers} views={views}"
                if not quick and has(RESULTS, {"what": f"train {model}", "settings": settings}):
                    continue
                rates: dict[str, list[float]] = {"gpaco": [], "timm": []}
                for _ in range(ROUNDS):
                    rates["gpaco"].append(ours(data, model, size, batch, workers, views))
                    rates["timm"].append(plain(data, model, size, batch, workers))
                ratio = statistics.median(a / b for a, b in zip(rates["gpaco"], rates["timm"], strict=True))
                medians = {name: round(statistics.median(values), 1) for name, values in rates.items()}
                print(f"{model}, {workers} workers, {views} views: {medians}, ratio {ratio:.2f}", flush=True)
                row = {"what": f"train {model}", "settings": settings, "seed": 0, **medians, "ratio": round(ratio, 3)}
                if not quick:
                    append(RESULTS, {**row, "megabytes": ""})


COMMAND = """
import resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run([sys.executable, "-m", "gpaco", *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL)
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
FIRST_STEP = """
import os, resource, sys, tempfile, time
start = time.perf_counter()
import gpaco
from torch.nn.modules.module import register_module_forward_pre_hook

def begin(module, inputs):
    if len(inputs[0]) > 100:  # the first batch, not the few images that the estimate measures
        print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
        os._exit(0)

register_module_forward_pre_hook(begin)
run = os.path.join(tempfile.mkdtemp(dir=sys.argv[1]), "run")
tiny = {"model": "resnet8", "size": 32, "weights": "none", "train": "all"}
gpaco.train(sys.argv[2], out=run, say=lambda line: None, **tiny)
"""


def measure_start(what: str, number: int, quick: bool, code: str, *words: object) -> None:
    """Time and peak memory of what the code does on this many files, unless there is a row already."""
    if not quick and any(row["what"] == what and f"files={number} " in row["settings"] for row in read(RESULTS)):
        return
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], stdout=subprocess.PIPE, text=True, check=True)
    seconds, kilobytes = done.stdout.split()
    rate, size = number / float(seconds), int(kilobytes) / 1024
    print(f"{what}: {float(seconds):.1f} s, {rate:.0f} files/s, {size:.0f} MB", flush=True)
    row = {"what": what, "settings": f"files={number} seconds={float(seconds):.1f}", "seed": 0, "gpaco": round(rate)}
    if not quick:
        append(RESULTS, {**row, "timm": "", "ratio": "", "megabytes": round(size)})


def measure_starts(folder: Path, quick: bool) -> None:
    number = 2_000 if quick else 20_000
    photos = make_images(folder / "many", number, (500, 375), ".jpg", classes=100)
    measure_start("check", number, quick, COMMAND, "check", photos)
    number = 130_000 if quick else 1_300_000
    tiny = folder / f"tiny-{number}"
    image = make_images(folder / "one", 1, (64, 64), ".jpg") / "train" / "class0" / "0.jpg"
    content = image.read_bytes()
    for k in range(0 if tiny.is_dir() else number + 1000):
        place = tiny / ("train" if k < number else "test") / f"class{k % 1000}"
        if k < 1000 or k >= number:
            place.mkdir(parents=True, exist_ok=True)
        (place / f"{k}.jpg").write_bytes(content)
    words = ("--model", "resnet8", "--size", 32, "--weights", "none", "--train", "all", "--dry-run")
    measure_start("train --dry-run", number, quick, COMMAND, "train", tiny, *words)
    measure_start("train, before the first step", number, quick, FIRST_STEP, folder, tiny)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the images; a temporary one unless given")
    parser.add_argument("--part", choices=("loops", "starts"))
    parser.add_argument("--quick", action="store_true", help="a tenth of the files")
    options = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        if options.part != "starts":
            compare_loops(folder, options.quick)
        if options.part != "loops":
            measure_starts(folder, options.quick)


if __name__ == "__main__":
    main()
