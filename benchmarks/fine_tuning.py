"""Fine-tuning a pretrained backbone on CIFAR-100-LT: its last block, or all of it. Slow on a CPU.

    python benchmarks/fine_tuning.py DATA --weights FILE --out DIR [--parts last-block all] [--factors 100] [--seeds 2]

DATA and FILE as for frozen_features.py; images are enlarged to 64 pixels, two random crops of each are trained on, in
batches of 64 images: with 128, three epochs are few steps. Every method is tuned with two learning rates for each part
(cells.py says how), all else is as written below.
Results are added to benchmarks/results/fine_tuning.csv and docs/benchmarks.md as they come. Rerun the same command to
resume: finished runs are kept, and a stopped run resumes after its last epoch.
"""

import argparse
from pathlib import Path

from cells import RESULTS, Study, run_study

RATES = [["optimizer.lr=0.03"], ["optimizer.lr=0.1"]]
CONTRAST = ["method.alpha=0.02", "method.temperature=0.1", "method.memory=1024"]
METHODS = {
    "ce": (["method.name=ce"], RATES),
    "balanced-softmax": (["method.name=balanced-softmax"], RATES),
    "gpaco-counts": (["method.name=gpaco", "method.prior=counts", *CONTRAST], RATES),
    "gpaco-unbiased": (["method.name=gpaco", "method.prior=unbiased", *CONTRAST], RATES),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", default=["last-block", "all"])
    parser.add_argument("--factors", type=float, nargs="+", default=[100])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS / "fine_tuning.csv")
    options = parser.parse_args()
    common = (
        "model.name=tf_efficientnet_lite0",
        f"model.weights={options.weights}",
        "model.size=64",
        "views.first=plain",
        "views.second=plain",
        "views.crop_scale=[0.25, 1]",
        "train.epochs=3",
        "train.batch_size=64",
        "train.report=false",
        "schedule.warmup=1",
        "data.allow_leakage=true",  # CIFAR-100 has a few images twice
    )
    for part in options.parts:
        study = Study(options.data, options.out, part, common, options.results)
        run_study(study, METHODS, options.factors, options.seeds, "last block")


if __name__ == "__main__":
    main()
