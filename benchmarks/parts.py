"""Where does the time of training go? One epoch of `gpaco train` under cProfile, on small images and on photos.

    python benchmarks/parts.py [--quick]

GPaCo with two plain views, without loader processes: resnet8 on PNG files of 32 x 32 in batches of 128, and
mobilenetv3_small_100 on JPEG files of 500 x 375 with crops of 224 in batches of 32, made as in speed.py. A part has the
time of its function and of all that it calls in the training loop; "rest" is the loop without the parts. Rows go to
benchmarks/results/parts.csv, which the same command replaces. Two quiet cores, about a minute.
"""

import argparse
import cProfile
import pstats
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch._dynamo  # the first optimizer imports it  # noqa: F401
from speed import make_images
from table import write

import gpaco
from gpaco.training import loop, stages

RESULTS = Path(__file__).parent / "results" / "parts.csv"
WHOLE = ("training/loop.py", "fit")
PARTS = {  # a function by the end of its file's path and its name
    "decoding": ("data/samples.py", "load"),
    "views": ("data/views/views.py", "photo_view"),
    "normalization": ("data/views/views.py", "normalize"),
    "forward pass": ("models/classifier.py", "forward"),
    "loss": ("losses/criterion.py", "forward"),
    "backward pass": ("torch/_tensor.py", "backward"),
    "optimizer": ("torch/optim/sgd.py", "step"),
    "saving": ("training/checkpoint.py", "save"),
}


def profile(data: Path, model: str, size: int, batch: int) -> dict[str, float]:
    """Return the seconds of each part of one epoch."""
    profiler = cProfile.Profile()
    with tempfile.TemporaryDirectory() as out:
        settings = ["views.first=plain", "views.second=plain", "train.report=false"]
        common: dict[str, Any] = {"weights": "none", "train": "all", "epochs": 1, "workers": 0, "validation": 0.0}
        with patch.object(stages, "fit", lambda *given: profiler.runcall(loop.fit, *given)):
            gpaco.train(
                data,
                out=Path(out) / "run",
                method="gpaco",
                model=model,
                size=size,
                batch_size=batch,
                settings=settings,
                say=lambda line: None,
                **common,
            )
    functions: dict[tuple[str, int, str], tuple[float, ...]] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]

    def seconds(file: str, name: str) -> float:
        return sum(row[3] for (path, _, function), row in functions.items() if function == name and path.endswith(file))

    found = {part: seconds(*place) for part, place in PARTS.items()}
    return found | {"rest": seconds(*WHOLE) - sum(found.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the images, and write nothing")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder, less = Path(temporary), 10 if options.quick else 1
        small = make_images(folder / "small", 5120 // less, (32, 32), ".png")
        photos = make_images(folder / "photos", 640 // less, (500, 375), ".jpg")
        for data, model, size, batch in ((small, "resnet8", 32, 128), (photos, "mobilenetv3_small_100", 224, 32)):
            found = profile(data, model, size, batch)
            for part, seconds in found.items():
                share = seconds / sum(found.values())
                print(f"{model:22} {part:14} {seconds:6.2f} s {100 * share:5.1f}%", flush=True)
                row = {"dataset": data.name, "method": "gpaco", "seed": 0, "settings": f"{model} {size} {batch}"}
                rows.append({**row, "part": part, "seconds": round(seconds, 3), "share": round(share, 4)})
    if not options.quick:
        write(RESULTS, rows)


if __name__ == "__main__":
    main()
