"""One number of the paper: CIFAR-100-LT with factor 100, ResNet-32, GPaCo against balanced softmax, epoch by epoch.

    python benchmarks/paper_number.py CIFAR --out DIR [--methods gpaco balanced-softmax] [--epochs 200] [--amp off]
    python benchmarks/paper_number.py CIFAR --out DIR --test        tests the epochs so far, trains nothing

`gpaco train CIFAR --recipe cifar100-lt100-resnet32-gpaco`: temperature 0.05, alpha 0.01, embeddings of length 32, rate
0.1, a strong and a stronger view. The paper trains for 400 epochs; here it is half of that, with the steps of the
schedule at half of their epochs and the warm-up unchanged. Balanced softmax has the same views, rate and schedule. One
seed. With bf16 on a processor with instructions for it, a method takes 1.2 to 2.3 hours on two cores; with --amp off,
about 6.6 hours of one core (OMP_NUM_THREADS=1, and two processes with one method each). The same command resumes. Every
tenth epoch is kept, and tested at the end; nothing is selected on test data. Rows go to
benchmarks/results/paper_number.csv, curves to paper_number.svg there; those of other lengths to DIR/curves.svg.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from table import append, has, read

import gpaco
from gpaco.cli.display import Display
from gpaco.data.samples import Samples
from gpaco.metrics.classification import summarize
from gpaco.models.lora import merged
from gpaco.tasks.classification.card import Card, build_model
from gpaco.tasks.classification.evaluation import evaluation_part, logits_of
from gpaco.tasks.classification.predictor import Predictor
from gpaco.training import checkpoint
from gpaco.training.card import read_card
from gpaco.training.run import Run, weights_of

RESULTS = Path(__file__).parent / "results" / "paper_number.csv"
METHODS = ("gpaco", "balanced-softmax")
GROUPS = ("top1", "many", "medium", "few")
EVERY = 10  # epochs


def train(data: str, folder: Path, method: str, epochs: int, amp: str) -> Run:
    steps = [epochs * step // 400 for step in (320, 360)]
    return gpaco.train(
        data,
        out=folder,
        recipe=f"cifar100-lt100-resnet32-{method}",
        epochs=epochs,
        settings=[
            *("views.second=cifar_aug", "optimizer.lr=0.1", f"schedule.steps={steps}", f"train.amp={amp}"),
            *("train.report=false", "train.workers=0"),
            *(f"train.checkpoint_every={EVERY}", f"train.keep={epochs // EVERY}"),
        ],
        show=Display(sys.stdout).show,
    )


def test(run: Run, path: Path, samples: Samples) -> dict[str, float]:
    """Return the accuracies of one checkpoint."""
    found = checkpoint.load(path, [])
    card = replace(read_card(Card, found.state["card"], str(path)), step=found.step)
    model = build_model(card)
    model.load_state_dict(merged(weights_of(run, found)))
    logits = logits_of(Predictor(model, card).eval(), samples)
    result = summarize(np.asarray(logits), samples.labels, card.counts, card.classes)
    return {name: round(result[name], 4) for name in GROUPS}


def measure(run: Run, method: str, epochs: int, amp: str) -> None:
    """Add a row for every checkpoint of a run."""
    samples = evaluation_part(run, None)
    for path in reversed(checkpoint.find(run.folder / "checkpoints")):
        epoch = checkpoint.load(path, []).state["position"]["epoch"]
        key = {"dataset": "cifar100-lt100", "method": method, "epochs": epochs, "amp": amp, "seed": 0, "epoch": epoch}
        if epoch % EVERY == 0 and not has(RESULTS, key):
            append(RESULTS, {**key, **test(run, path, samples)})


def plot(path: Path, epochs: int, amp: str) -> None:
    """Draw the accuracy of all classes and of each group against the epoch."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "paper_number"
    rows = [row for row in read(RESULTS) if (row["epochs"], row["amp"]) == (str(epochs), amp)]
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axis, group in zip(figure.subplots(1, len(GROUPS)), GROUPS, strict=True):
        for method in METHODS:
            mine = sorted((int(row["epoch"]), 100 * float(row[group])) for row in rows if row["method"] == method)
            axis.plot([epoch for epoch, _ in mine], [value for _, value in mine], "o-", markersize=3, label=method)
        axis.set(title={"top1": "all classes"}.get(group, f"{group}-shot classes"), xlabel="epoch")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.supylabel("accuracy (%)")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="the folder cifar-100-python, or the one above it")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--amp", choices=("off", "bf16"), default="bf16")
    parser.add_argument("--test", action="store_true")
    options = parser.parse_args()
    for method in options.methods:
        folder = options.out / f"{method}-{options.epochs}"
        if not options.test:
            train(options.data, folder, method, options.epochs, options.amp)
        measure(Run(folder), method, options.epochs, options.amp)
    published = (options.epochs, options.amp) == (200, "bf16")
    plot(RESULTS.with_suffix(".svg") if published else options.out / "curves.svg", options.epochs, options.amp)


if __name__ == "__main__":
    main()
