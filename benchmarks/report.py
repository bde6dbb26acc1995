"""The tail report at 1,000 classes and 50,000 predictions: seconds to write it, seconds to open it, its size.

    python benchmarks/report.py [--out benchmarks/results] [--classes 1000] [--images 50000] [--runs 1] [--keep FOLDER]

Predictions are synthetic: logits of a model whose features grow worse with rarity, on a test set with as many images of
each class, as ImageNet-LT has. Opening is measured in headless Chromium, from navigation to the last chart drawn, the
best and the median of five. Writes report.csv with the machine.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from table import append

from gpaco import report
from gpaco.data.longtail import class_sizes
from gpaco.metrics.classification import summarize
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe

SWITCHES = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"


def made_up_run(folder: Path, classes: int, images: int, *, method: str = "gpaco", seed: int = 0) -> Path:
    """A run folder without a model: metrics, predictions and gradients that look like those of a real one."""
    rng = np.random.default_rng(seed)
    counts = np.array(class_sizes(classes, 1280, 256))
    labels = np.repeat(np.arange(classes), images // classes)
    kin = rng.normal(0, 1, (classes, 12)).astype(np.float32)  # classes that are near each other are confused
    near = 2.2 * kin @ kin.T / np.sqrt(12)
    strength = 3.2 + 1.1 * np.log10(counts) + rng.normal(0, 1.2, classes)
    logits = near[labels] + rng.normal(0, 2, (len(labels), classes)).astype(np.float32)
    own = strength[labels] + (0.8 if method != "ce" else 0.0) * (counts[labels] < 20) + rng.normal(0, 2.5, len(labels))
    logits[np.arange(len(labels)), labels] += own.astype(np.float32)
    if method == "ce":
        logits += 0.8 * np.log(counts / counts.sum()).astype(np.float32)
    write_run(folder, logits.astype(np.float32), labels, counts, [f"class {c:04d}" for c in range(classes)], method)
    return folder


def write_run(
    folder: Path,
    logits: NDArray[np.float32],
    labels: NDArray[np.int64],
    counts: NDArray[np.int64],
    names: list[str],
    method: str,
) -> None:
    folder.mkdir(parents=True)
    recipe = recipes.override(Recipe(), [f"method.name={method}", "data.path=gone"])
    (folder / "recipe.toml").write_text(recipes.dumps(recipe))
    metrics = summarize(logits, labels, counts, names) | {
        "evaluated_on": "test",
        "selected_on": "last epoch",
        "seed": 0,
        "method": method,
        "assumes": "train" if method == "ce" else "uniform",
        "counts": counts.tolist(),
        "environment": {"gpaco": "made up"},
    }
    (folder / "metrics.json").write_text(json.dumps(metrics))
    images = np.array([f"test/{i}" for i in range(len(labels))])
    np.savez(folder / "predictions.npz", logits=logits, labels=labels, names=images)
    noise = np.random.default_rng(1).lognormal(0, 0.2, len(counts))
    slope = 0.8 if method == "ce" else 0.15
    mass = 1 / (1 + 0.05 * counts / counts.sum() * 8192)
    analysis = {
        "method": method,
        "counts": counts.tolist(),
        "shown": counts.tolist(),
        "settings": {"alpha": 0.05, "memory": 8192, "batch": 128, "views": 2} if method != "ce" else None,
        "gradients": {
            "centers": (0.01 * counts**slope * noise).tolist(),
            "features": noise.tolist(),
            "slope": slope,
            "features_slope": 0.0,
            "images": 1000,
        },
        "mass": {
            "positives": (counts / counts.sum() * 8192).tolist(),
            "center": (mass * noise).clip(0, 1).tolist(),
            "each": (0.05 * mass * noise).tolist(),
        },
    }
    (folder / "analysis.json").write_text(json.dumps(analysis))


def opened(page: Path, times: int = 5) -> list[float]:
    """Seconds from navigation until everything is drawn."""
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    seconds = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=SWITCHES.split())
        for _ in range(times):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            began = time.perf_counter()
            tab.goto(page.absolute().as_uri())
            tab.wait_for_selector("body[data-ready]", state="attached")
            seconds.append(time.perf_counter() - began)
            tab.close()
        browser.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="leave runs and page there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        methods = ["gpaco"] if options.runs == 1 else ["ce", *["gpaco"] * (options.runs - 1)]
        runs = [
            made_up_run(folder / f"{method}-{k}", options.classes, options.images, method=method, seed=k)
            for k, method in enumerate(methods)
        ]
        began, used = time.perf_counter(), time.process_time()
        page = report(runs, folder / "report.html")
        written, used = time.perf_counter() - began, time.process_time() - used
        size = page.stat().st_size
        times = opened(page)
    row = {
        "classes": options.classes,
        "images": options.images,
        "runs": options.runs,
        "written_seconds": round(written, 2),
        "written_processor_seconds": round(used, 2),
        "opened_seconds_best": round(min(times), 2),
        "opened_seconds_median": round(statistics.median(times), 2),
        "megabytes": round(size / 1e6, 2),
    }
    print(row)
    append(options.out / "report.csv", row)


if __name__ == "__main__":
    main()
