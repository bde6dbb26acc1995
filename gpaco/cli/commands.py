"""Commands that train, test and inspect. Each parses its arguments, calls a public function and prints the result."""

import json
import os
import shlex
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import gpaco
from gpaco.cli import options
from gpaco.cli.console import print_metrics
from gpaco.cli.display import display, is_first_process
from gpaco.errors import UserError
from gpaco.recipes.request import FLAGS
from gpaco.recipes.settings import METHODS
from gpaco.system.words import in_lines, plural

app = typer.Typer(
    help="Train image classifiers and segmenters that also work on rare classes.",
    epilog="""\b
First steps, with a folder that has one subfolder of images per class:
  gpaco check photos/
  gpaco train photos/ --out runs/first
  gpaco predict runs/first new/""",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def print_version(asked: bool) -> None:
    if asked:
        print(gpaco.__version__)
        raise typer.Exit


@app.callback()
def all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Options of all commands. --debug may also follow the command: gpaco/cli/main.py looks for it."""


@app.command()
def demo(
    out: options.Out = Path("demo"),
    seeds: Annotated[int, typer.Option(help="Number of runs per method.")] = 1,
    as_json: options.Json = False,
) -> None:
    """Compare three methods on long-tailed handwritten digits, in about a minute.

    Prints a table and writes an HTML report that compares the runs.
    """
    from gpaco.api.demo import run_demo

    screen = display(as_json, epochs=False)
    result = run_demo(out, seeds, say=screen, show=screen.show)
    if as_json:
        print(json.dumps(result))


@app.command()
def check(
    data: options.Data,
    root: options.Root = None,
    task: options.Task = None,
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="data.allow_outside=true", help="Allow paths outside the data folder."),
    ] = [],  # noqa: B006 - typer makes a new one for each call
    as_json: options.Json = False,
) -> None:
    """Check data before training: counts, unreadable files, duplicates, leakage.

    Also suggests settings. The exit code is 2 if there is a problem.
    """
    from gpaco.api.check import check as check_data

    with display(as_json).working("checking images") as progress:
        result, lines = check_data(data, task=task or "classification", root=root, settings=settings, progress=progress)
    print(json.dumps(result) if as_json else "\n".join(lines))
    if result["problems"]:
        raise typer.Exit(2)


@app.command()
def train(
    data: options.Data,
    root: options.Root = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results. Default: runs/NAME-OF-THE-DATA.")] = None,
    recipe: options.Recipe = None,
    paper: options.Paper = False,
    task: options.Task = None,
    method: Annotated[
        str | None,
        typer.Option(help=f"One of {', '.join(METHODS)}; `gpaco show METHOD` explains it. Default: gpaco."),
    ] = None,
    model: options.Model = None,
    weights: options.Weights = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.Rate = None,
    size: options.Size = None,
    long_tail: options.LongTail = None,
    validation: options.Validation = None,
    part: options.Part = None,
    amp: Annotated[str | None, typer.Option(help="Mixed precision: off, bf16 or fp16. Default: off.")] = None,
    on_bad_image: Annotated[
        str | None, typer.Option(help="Unreadable images: error (default) stops, skip leaves them out.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of processes that load images. Default: chosen from the data.")
    ] = None,
    device: options.Device = None,
    tune: options.Tune = None,
    tune_prior: options.TunePrior = False,
    seed: options.Seed = None,
    log: Annotated[str | None, typer.Option(help="Also log epochs to tensorboard, wandb or tensorboard,wandb.")] = None,
    settings: options.Set = [],  # noqa: B006 - typer makes a new one for each call
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Test everything with two steps, estimate hours and memory, keep nothing.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Train a classifier or a segmenter.

    Rerun the same command to resume a run that was interrupted.
    """
    given = {**locals(), "train": part, "tune": options.minutes(tune), "tune_prior": tune_prior or None}
    flags = {name: given[name] for name in FLAGS if name in given}
    flags |= {name: given[name] for name in ("recipe", "paper", "settings", "device")}
    from gpaco.api.train import dry_run as train_two_steps
    from gpaco.api.train import train as train_model

    screen = display(as_json)
    if dry_run:
        needs = train_two_steps(data, say=screen, **flags)
        if as_json:
            print(json.dumps({"dry_run": "everything works"} | needs))
        return
    if out is None:
        place = Path(os.path.abspath(data))
        out = Path("runs", place.name if place.is_dir() else place.stem)
        screen(f"results: {out} (--out chooses another folder)")
    run = train_model(data, out=out, say=screen, show=screen.show, **flags)
    if is_first_process():
        if (run.folder / "metrics.json").is_file():  # missing without data to evaluate on
            print_metrics(run.metrics, as_json)
        screen(f"Model: {run.folder}")
        if (page := run.folder / "report.html").is_file():  # not with train.report=false
            screen(f"Report: {page}")


@app.command()
def evaluate(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="RUN... [DATA]", help="One run, or several as an ensemble; optionally, other data."),
    ],
    root: options.Root = None,
    prior: options.Prior = None,
    unbiased: options.Unbiased = False,
    tune_prior: options.TunePrior = False,
    many: Annotated[
        float | None, typer.Option(help="Classes with more training images than this are many-shot. Default: 100.")
    ] = None,
    few: Annotated[
        float | None, typer.Option(help="Classes with fewer training images than this are few-shot. Default: 20.")
    ] = None,
    restrict: options.Restrict = False,
    checkpoint: options.Checkpoint = "best",
    scales: options.Scales = None,
    flip: options.Flip = False,
    window: options.Window = None,
    device: options.Device = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the metrics.")] = None,
    as_json: options.Json = False,
) -> None:
    """Compute the metrics of a run on its test data, or on other data."""
    names = ("root", "prior", "unbiased", "tune_prior", "many", "few", "restrict", "device", "out")
    arguments = {name: value for name, value in locals().items() if name in names}
    inference = options.inference_options(scales, flip, window)
    from gpaco.tasks.classification.priors import describe_tuned, read_tuned
    from gpaco.training.run import as_run, is_run, unfinished

    runs = [Path(path) for path in paths if is_run(Path(path))]
    others = [path for path in paths if not is_run(Path(path))]
    if not runs:
        as_run(paths[0])  # raises an error that says what is wrong
    if len(others) > 1:
        raise UserError(f"neither {others[0]} nor {others[1]} is a run", "give runs, then at most one data set")
    screen = display(as_json)
    with screen.working("evaluating") as progress:
        result = gpaco.evaluate(
            runs,
            others[0] if others else None,
            which=checkpoint,
            progress=progress,
            say=screen,
            **arguments,
            **inference,
        )
    for line in filter(None, map(unfinished, runs)):
        screen(line)
    for tuned in filter(None, map(read_tuned, runs if "tuned" in result else [])):
        screen(describe_tuned(tuned))
    if is_first_process():
        print_metrics(result, as_json)
    if out is not None:
        screen(f"Metrics: {out}")


@app.command()
def predict(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN... PATH...",
            help="One run, several as an ensemble, or an exported .onnx file; then images, folders of images, or .txt "
            "lists.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="A .csv, .jsonl or .parquet file, replaced if it has earlier predictions; for a segmenter, a folder "
            "of masks. Default: predictions.csv (no file with --json), or the folder predictions.",
        ),
    ] = None,
    prior: options.Prior = None,
    unbiased: options.Unbiased = False,
    uncertain: Annotated[
        float | None, typer.Option(help="Mark rows with a probability below this for review, such as 0.7.")
    ] = None,
    scales: options.Scales = None,
    flip: options.Flip = False,
    window: options.Window = None,
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Predict the class of each image, or of each pixel.

    An unreadable file gets a row with its error. An .onnx file is used without torch.
    """
    arguments = {"prior": prior, "unbiased": unbiased, "device": device}
    arguments |= options.inference_options(scales, flip, window)
    predictor = _file_predictor if paths[0].suffix.lower() == ".onnx" else _run_predictor
    predicted, images, segments, notes = predictor(paths, arguments)
    if not images:
        raise UserError("there is no image to predict", "give images or folders after the run")
    place = out or (Path("predictions") if segments else None if as_json else Path("predictions.csv"))
    screen = display(as_json)
    with screen.working("predicting") as progress:
        rows = predicted(images, out=place, progress=progress, uncertain=uncertain)
    if as_json and is_first_process():
        print(json.dumps(rows))
    unreadable = sum(row["error"] is not None for row in rows)
    if unreadable == len(rows):
        raise UserError(f"no image could be read: {rows[0]['error']}", "give images that can be opened")
    for line in notes:
        screen(line)
    if not (as_json or segments) and len(rows) <= 10 and is_first_process():
        for row in rows:
            print(row["error"] or format_answer(row))
    elif not (as_json or segments) and is_first_process():
        found = Counter(row["class"] for row in rows if row["error"] is None).most_common()
        more = [plural(len(found) - 10, "other class")] if len(found) > 10 else []
        print("\n".join(in_lines([*(f"{name} {number:,}" for name, number in found[:10]), *more])))
    what = plural(len(rows), "image")
    if unreadable:
        what = f"{plural(len(rows), 'file')}, {unreadable} of them could not be read"
    if uncertain is not None:
        what += f", {sum(row['uncertain'] for row in rows):,} to review (probability below {uncertain:g})"
    screen(f"{what}: {place}" if place else what)


Predicted = tuple[Callable[..., list[dict[str, Any]]], list[Path], bool, list[str]]


def _run_predictor(paths: list[Path], arguments: dict[str, Any]) -> Predicted:
    """Return a function that predicts, the images, whether it segments, and lines about the runs."""
    from gpaco.tasks.classification.priors import describe_tuned, read_tuned
    from gpaco.training.run import as_run, is_run, unfinished

    runs = [path for path in paths if is_run(path)]
    segments = as_run(runs[0] if runs else paths[0]).recipe.train.task == "segmentation"
    tuned = [describe_tuned(found) for found in map(read_tuned, runs) if found]
    images = [path for path in paths if path not in runs]
    return partial(gpaco.predict, runs, **arguments), images, segments, [*filter(None, map(unfinished, runs)), *tuned]


def _file_predictor(paths: list[Path], arguments: dict[str, Any]) -> Predicted:
    """Return the same as `_run_predictor` for an exported file, without torch."""
    from gpaco.api.exported import open_model, predict_file
    from gpaco.tasks.segmentation.masks import ImageSegmenter

    file, *images = paths
    model = open_model(file, **arguments)
    return partial(predict_file, model), images, isinstance(model, ImageSegmenter), []


def format_answer(row: dict[str, Any]) -> str:
    """Return the answer for one image: its class, the probability, how rare the class is, and the runner-up."""
    text = f"{row['path']}: {row['class']} {100 * row['probability']:.0f}%"
    if row["train"] is not None:
        text += f" ({row['group']}: {plural(row['train'], 'training image')})"
    return text + "".join(f"; {name} {100 * share:.0f}%" for name, share in row["top"][1:2])


@app.command()
def mine(
    run: options.Run,
    pool: Annotated[list[Path], typer.Argument(help="Unlabeled images: files, folders, tar shards, or .txt lists.")],
    out: Annotated[
        Path, typer.Option("--out", help="A .csv file. A page with thumbnails is written beside it, as .html.")
    ],
    classes: Annotated[
        str, typer.Option(help="Classes to find images for, separated by commas; rare: those with few training images.")
    ] = "rare",
    n: Annotated[int, typer.Option("--n", help="Number of candidates, divided among the classes.")] = 200,
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Find images in an unlabeled pool that probably belong to rare classes.

    Candidates are predicted as the class when all classes are equally likely; near-duplicates are skipped.
    """
    screen = display(as_json)
    with screen.working("looking at images") as progress:
        rows = gpaco.mine(run, list(pool), out=out, classes=classes, n=n, device=device, progress=progress, say=screen)
    if as_json and is_first_process():
        print(json.dumps(rows))
    found = len({row["class"] for row in rows})
    what = f"{plural(len(rows), 'candidate')} for {plural(found, 'class')}"
    screen(f"{what}: {out}, thumbnails: {out.with_suffix('.html')}")


@app.command()
def compare(
    data: options.Data,
    out: options.Out,
    root: options.Root = None,
    methods: Annotated[
        str, typer.Option(help="Methods separated by commas, with settings if needed: gpaco+prior=counts.")
    ] = "ce,balanced-softmax,gpaco",
    seeds: Annotated[int, typer.Option(help="Number of runs per method.")] = 3,
    model: options.Model = None,
    weights: options.Weights = None,
    size: options.Size = None,
    part: options.Part = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.Rate = None,
    long_tail: options.LongTail = None,
    validation: options.Validation = None,
    recipe: options.Recipe = None,
    device: options.Device = None,
    settings: options.Set = [],  # noqa: B006
    as_json: options.Json = False,
) -> None:
    """Train several methods with several seeds and print one table.

    Rerun the same command to resume. Each method and seed has its own run folder.
    """
    given = {**locals(), "train": part}
    from gpaco.api.compare import split_methods, table

    flags = {name: given[name] for name in FLAGS if name in given}
    flags |= {name: given[name] for name in ("recipe", "settings", "device")}
    screen = display(as_json)
    result = gpaco.compare(data, split_methods(methods), seeds=seeds, out=out, say=screen, show=screen.show, **flags)
    if is_first_process():
        print(json.dumps(result) if as_json else table(result))
        screen(f"Table: {out / 'comparison.md'}. Report on the first seed: {out / 'report.html'}")


@app.command()
def latency(
    runs: Annotated[list[Path], typer.Argument(help="One or more runs.")],
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Measure the time per image of runs, and count their parameters and FLOPs.

    The numbers are stored with the run, and the report of a comparison plots accuracy against them.
    """
    from gpaco.api.latency import table

    rows = gpaco.latency(list(runs), device=device, say=display(as_json))
    print(json.dumps(rows) if as_json else table(rows))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="One or more runs with the same classes.")],
    out: Annotated[
        Path, typer.Option("--out", help="HTML file; its numbers are written to the folder NAME_files beside it.")
    ] = Path("report.html"),
    images: Annotated[bool, typer.Option(help="Show images of the data, if it is available.")] = True,
) -> None:
    """Write an HTML report about one or more runs.

    It shows how errors depend on class frequency, their causes, and what would help. While a run is still training, it
    shows the curves so far.
    """
    print(gpaco.report(list(runs), out, with_images=images, say=display(as_json=True)))


@app.command()
def robustness(
    run: options.Run,
    data: Annotated[
        str | None,
        typer.Argument(
            help="Images to corrupt, instead of the run's own; or ImageNet-C, -R, -A, -V2, -Sketch or CIFAR-C."
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Baseline of the mCE: another run, or alexnet (ImageNet only).")
    ] = None,
    clean: Annotated[Path | None, typer.Option(help="Clean images that belong to ImageNet-C or CIFAR-C.")] = None,
    corruptions: Annotated[
        str | None, typer.Option(help="Corruptions separated by commas, or noise, blur, weather or digital.")
    ] = None,
    severities: Annotated[str | None, typer.Option(help="Severities from 1 to 5, separated by commas.")] = None,
    subset: Annotated[int | None, typer.Option(help="Test only this many images, drawn from all classes.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the corruptions and the subset.")] = 0,
    restrict: options.Restrict = False,
    prior: options.Prior = None,
    unbiased: options.Unbiased = False,
    on_bad_image: Annotated[str, typer.Option(help="Unreadable images: error stops, skip leaves them out.")] = "error",
    workers: Annotated[
        int | None, typer.Option(help="Number of processes that corrupt images. Default: one per core, up to 8.")
    ] = None,
    device: options.Device = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results. Default: the run.")] = None,
    as_json: options.Json = False,
) -> None:
    """Measure errors on corrupted images, by corruption, severity and class group.

    Rerun the same command to resume.
    """
    arguments = {name: value for name, value in locals().items() if name != "as_json"}
    from gpaco.cli.tables import robustness_table

    screen = display(as_json)
    result = gpaco.robustness(**arguments, say=screen, bar=screen.working)
    if is_first_process():
        print(json.dumps(result) if as_json else robustness_table(result))
    if data is None and out is None:
        command = shlex.join(["gpaco", "report", str(run), "--out", str(run / "report.html")])
        screen(f"Add these results to the report of the run: {command}")
