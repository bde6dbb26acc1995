"""The first segmenter of a user on a CPU: the default command, the same from scratch, and segmentation-models-pytorch.

    python benchmarks/first_segmenter.py DATA --minutes 30 --seeds 1

DATA is CamVid in SegNet's layout (train/, trainannot/, test/, testannot/). Three methods, each with one seed after the
other, all with the same decoder, crops and batches, and with the same minutes of training:

    gpaco            what `gpaco train DATA --task segmentation` does: the encoder starts from ImageNet-1k weights
    from scratch     the same with --weights none
    smp dice + ce    the network of segmentation-models-pytorch, with the same weights in its encoder and the same
                     optimizer, trained with its Dice loss + cross entropy

Minutes are those of one processor that the process has used in training, so that other work on the machine hardly
counts; use OMP_NUM_THREADS=1. The number of epochs of gpaco follows from them, by the time of a few steps. The last
epoch counts, and all training images are trained on: no validation split is used. Every method has a row in
benchmarks/results/first_segmenter.csv as soon as it is done. Rerun the same command to go on: rows that are there are
not measured again, and a run of gpaco that was stopped resumes.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import segmentation_models_pytorch as smp
import torch
from table import append, read
from torch import Tensor, nn
from torch.nn import functional as F

import gpaco
from gpaco.data.batches import Batch, steps_per_epoch
from gpaco.metrics.segmentation import IGNORE
from gpaco.models import backbones
from gpaco.models.weights.packaged import PACKAGE
from gpaco.recipes.request import requested
from gpaco.system.progress import quiet
from gpaco.tasks.segmentation.batches import batches
from gpaco.tasks.segmentation.card import describe
from gpaco.tasks.segmentation.evaluation import evaluate_scenes
from gpaco.tasks.segmentation.network import DECODERS, STEP, load_encoder, timm_name
from gpaco.tasks.segmentation.predictor import ScenePredictor
from gpaco.tasks.segmentation.task import Segmentation
from gpaco.training.run import Run
from gpaco.training.schedule import make_optimizer

METHODS = ("gpaco", "from scratch", "smp dice + ce")
SETTINGS = ["data.validation=0", "train.workers=0", "train.report=false"]
QUIET: dict[str, Any] = {"task": "segmentation", "say": quiet}
RARE = 4
HERE = Path(__file__).parent


class Halt(Exception):
    """Ends a run after a few steps."""


def without_validation(data: Path, out: Path) -> Path:
    """A folder that shows training and test data only."""
    folder = out / "data" / data.resolve().name
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "trainannot", "test", "testannot"):
        if not (folder / name).exists():
            (folder / name).symlink_to((data / name).resolve())
    return folder


def seconds_per_step(data: Path, steps: int = 8) -> float:
    """Processor time of a step of gpaco, after two that are not counted."""
    times: list[float] = []

    def show(row: dict[str, Any]) -> None:
        times.append(time.process_time())
        if len(times) == steps:
            raise Halt

    with tempfile.TemporaryDirectory() as folder, suppress(Halt):
        gpaco.train(data, out=folder, settings=SETTINGS, show=show, **QUIET)
    return (times[-1] - times[1]) / (steps - 2)


def epochs_for(data: Path, minutes: float, out: Path) -> int:
    """How many epochs of gpaco the minutes are; measured once, for all runs in this folder."""
    plan = out / f"epochs-for-{minutes:g}-minutes.txt"
    if not plan.is_file():
        task = prepared(data, 0)
        steps = steps_per_epoch(len(task.splits.train), task.recipe.train.batch_size)
        plan.write_text(str(max(1, round(60 * minutes / (steps * seconds_per_step(data))))))
    return int(plan.read_text())


def train_gpaco(data: Path, method: str, seed: int, minutes: float, out: Path) -> tuple[Run, float]:
    """A run and its minutes of training; if it has resumed, what its other steps would have taken is added."""
    epochs, marks = epochs_for(data, minutes, out), list[float]()

    def show(row: dict[str, Any]) -> None:
        if "step" in row:
            marks.append(time.process_time())

    folder = out / f"{method.replace(' ', '-')}-{minutes:g}-minutes-seed-{seed}"
    start: dict[str, Any] = {"weights": "none"} if method == "from scratch" else {}
    run = gpaco.train(data, out=folder, settings=SETTINGS, seed=seed, epochs=epochs, show=show, **QUIET, **start)
    steps = epochs * steps_per_epoch(len(prepared(data, seed).splits.train), run.recipe.train.batch_size)
    each = (marks[-1] - marks[0]) / (len(marks) - 1) if len(marks) > 1 else float("nan")
    return run, steps * each / 60


def prepared(data: Path, seed: int) -> Segmentation:
    """The default command, with its settings."""
    recipe, given = requested(data, None, SETTINGS, {"task": "segmentation", "seed": seed})
    return Segmentation.prepare(recipe, given, Path("no run"), torch.device("cpu"), quiet)


class Smp(nn.Module):
    """A network of segmentation-models-pytorch for images of any size."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def classify(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        scores: Tensor = self.network(F.pad(images, (0, -width % STEP, 0, -height % STEP)))
        return scores[:, :, :height, :width]


def smp_network(task: Segmentation) -> Any:
    name, settings = task.recipe.model.name, task.recipe.segmentation
    encoder = timm_name(name)
    options: dict[str, Any] = {"decoder_channels": settings.channels} if settings.channels else {}
    network = getattr(smp, DECODERS[name.partition("-")[0]])(
        encoder_name=f"tu-{encoder}", encoder_weights=None, classes=len(task.splits.classes), **options
    )
    load_encoder(network.encoder, backbones.build(encoder, weights=PACKAGE).module.state_dict(), PACKAGE)
    return network


def crops(task: Segmentation) -> Iterator[Batch]:
    """The batches of gpaco, epoch after epoch, without end."""
    card, epoch = describe(task.recipe, task.splits), 0
    while True:
        yield from batches(task.splits.train, task.recipe, card, epoch=epoch)
        epoch += 1


def train_smp(data: Path, seed: int, minutes: float) -> tuple[dict[str, Any], float]:
    """Metrics and minutes of segmentation-models-pytorch: AdamW at gpaco's rate, falling to 0 with the time used."""
    task = prepared(data, seed)
    torch.manual_seed(seed)
    network = smp_network(task).train().to(memory_format=torch.channels_last)
    optimizer = make_optimizer(task.recipe, network)
    dice = smp.losses.DiceLoss("multiclass", ignore_index=IGNORE)
    began, source, rate = time.process_time(), crops(task), task.recipe.optimizer.lr
    while (share := (time.process_time() - began) / (60 * minutes)) < 1:
        batch = next(source)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1 - share, 6 * share + 0.01)  # warm-up in the first sixth
        scores = network(batch.views[0])
        loss = dice(scores, batch.labels) + F.cross_entropy(scores, batch.labels, ignore_index=IGNORE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    used = (time.process_time() - began) / 60
    predictor = ScenePredictor(Smp(network.eval()), describe(task.recipe, task.splits)).eval()
    scenes: Any = task.splits.test
    return evaluate_scenes(predictor, scenes), used


def row_of(
    data: Path, method: str, seed: int, settings: str, metrics: dict[str, Any], minutes: float, counts: list[int]
) -> dict[str, Any]:
    ious = {one["name"]: one["iou"] or 0.0 for one in metrics["per_class"]}
    rarest = [name for _, name in sorted(zip(counts, ious, strict=True))[:RARE]]
    return {
        "dataset": data.resolve().name,
        "method": method,
        "seed": seed,
        "settings": settings,
        "miou": f"{metrics['miou']:.4f}",
        "rare": f"{sum(ious[name] for name in rarest) / RARE:.4f}",
        "classes": " ".join(f"{name}={ious[name]:.3f}" for name in ious),
        "minutes": f"{minutes:.1f}",
    }


def measured(data: Path, method: str, seed: int, minutes: float, out: Path) -> dict[str, Any]:
    task = prepared(data, seed)
    counts, recipe = list(task.splits.pixels), task.recipe
    network = f"{recipe.model.name} channels={recipe.segmentation.channels} crop={recipe.segmentation.crop[0]}"
    rate = f"batch={recipe.train.batch_size} {recipe.optimizer.name} lr={recipe.optimizer.lr:g}"
    asked = f"minutes={minutes:g}"
    if method == "smp dice + ce":
        metrics, used = train_smp(data, seed, minutes)
        return row_of(data, method, seed, f"{network} {rate} {asked}", metrics, used, counts)
    run, used = train_gpaco(data, method, seed, minutes, out)
    settings = f"{network} {rate} epochs={run.recipe.train.epochs} {asked}"
    return row_of(data, method, seed, settings, run.metrics, used, counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--out", type=Path, default=Path("first_segmenter"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "first_segmenter.csv")
    options = parser.parse_args()
    data = without_validation(options.data, options.out)
    for seed in range(options.seeds):
        for method in options.methods:
            cell = (options.data.resolve().name, method, str(seed))
            same = [row for row in read(options.results) if (row["dataset"], row["method"], row["seed"]) == cell]
            if any(row["settings"].endswith(f" minutes={options.minutes:g}") for row in same):
                continue
            row = measured(data, method, seed, options.minutes, options.out)
            append(options.results, row)
            print(f"{method}, seed {seed}: mIoU {row['miou']}, four rarest {row['rare']}, {row['minutes']} minutes")


if __name__ == "__main__":
    main()
