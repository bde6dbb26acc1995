"""Heads on frozen features, five methods on CIFAR-100-LT: which one makes the most of pretrained features?

    python benchmarks/frozen_features.py DATA --weights FILE --out DIR [--factors 100 50 10] [--seeds 5] [--methods ...]

DATA is the folder cifar-100-python or its archive, FILE the weights of an EfficientNet-Lite0 (tf_efficientnet_lite0,
safetensors). Images are enlarged to 96 pixels and embedded once in four random crops (a quarter of the area or more,
mirrored or not); runs with the same images share these features. A head (a hidden layer of 512, centers, for contrast a
projector) trains for 20 epochs on two of the four views at a time. Every method is tuned with eight settings on the
first factor (cells.py says how):

    all                    learning rate and weight decay
    ce, balanced-softmax   label smoothing
    gpaco, paco            with and without a memory (alpha 0.02, temperature 0.1)

A first round with other grids showed, on validation data, that a rate of 0.2 is too high for every method. paco has
momentum keys (0.99, for 20 epochs are few) and the published prior. The three contrastive methods start balanced.
Results are added to benchmarks/results/frozen_features.csv and docs/benchmarks.md as they come. Rerun the same command
to resume. Processes with different methods may share DIR.
"""

import argparse
from itertools import product
from pathlib import Path

from cells import RESULTS, Study, run_study

OPTIMIZER = product(
    ("optimizer.lr=0.02", "optimizer.lr=0.05"), ("optimizer.weight_decay=5e-4", "optimizer.weight_decay=2e-3")
)
GRID = [list(one) for one in OPTIMIZER]
CLASSIC = [[*one, f"method.label_smoothing={smoothing}"] for one in GRID for smoothing in (0, 0.1)]
CONTRAST = [
    [*one, "method.alpha=0.02", "method.temperature=0.1", f"method.memory={memory}"]
    for one in GRID
    for memory in (0, 1024)
]
METHODS = {
    "ce": (["method.name=ce"], CLASSIC),
    "balanced-softmax": (["method.name=balanced-softmax"], CLASSIC),
    "gpaco-counts": (["method.name=gpaco", "method.prior=counts"], CONTRAST),
    "gpaco-unbiased": (["method.name=gpaco", "method.prior=unbiased"], CONTRAST),
    "paco": (["method.name=paco", "method.prior=counts", "method.momentum=0.99"], CONTRAST),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--factors", type=float, nargs="+", default=[100, 50, 10])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--results", type=Path, default=RESULTS / "frozen_features.csv")
    options = parser.parse_args()
    common = (
        "model.name=tf_efficientnet_lite0",
        f"model.weights={options.weights}",
        "model.size=96",
        "model.hidden=512",
        "method.fuse=false",
        "views.first=plain",
        "views.second=plain",
        "views.crop_scale=[0.25, 1]",
        "train.cached_views=4",
        f"train.features={options.out / 'features'}",
        "train.epochs=20",
        "train.batch_size=128",
        "train.checkpoint_every=10",
        "train.report=false",
        "schedule.warmup=1",
        "data.allow_leakage=true",  # CIFAR-100 has a few images twice
    )
    study = Study(options.data, options.out, "head", common, options.results)
    run_study(study, {name: METHODS[name] for name in options.methods}, options.factors, options.seeds, "heads")


if __name__ == "__main__":
    main()
