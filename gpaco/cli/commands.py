"""The verbs of the command `gpaco`. Each parses its words, calls a function, and prints what that gave."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from gpaco import __version__
from gpaco.cli.console import display, print_figures, speaks
from gpaco.cli.options import (
    Data,
    Device,
    Flip,
    Json,
    Out,
    Paper,
    Prior,
    Restrict,
    Root,
    Scales,
    Seed,
    Set,
    Task,
    TunePrior,
    Unbiased,
    Window,
)
from gpaco.cli.segmentation_options import inference_options
from gpaco.errors import UserError

app = typer.Typer(
    help="Image classifiers and segmenters that also work on the rare classes.",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def gpaco(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where in the code an error came from.")] = False,
) -> None:
    """Options of all verbs; --debug may also stand after one: gpaco.cli looks for it."""


@app.command()
def demo(
    out: Out = Path("demo"),
    seeds: Annotated[int, typer.Option(help="Runs of each method.")] = 1,
    as_json: Json = False,
) -> None:
    """Three methods on long-tailed handwritten digits. A table and a page, in about a minute."""
    from gpaco.api.demo import run_demo

    screen = display(as_json, epochs=False)
    result = run_demo(out, seeds, say=screen, show=screen.show)
    if as_json:
        print(json.dumps(result))


@app.command()
def check(
    data: Data,
    root: Root = None,
    task: Task = None,
    as_json: Json = False,
) -> None:
    """Look at data before training.

    Counts, imbalance, bad files, duplicates, leakage, suggested settings. Exit code 2 if something would stop training.
    """
    from gpaco.api.check import check as check_data

    with display(as_json).working("looking at images") as progress:
        result, text = check_data(data, task=task or "classification", root=root, progress=progress)
    print(json.dumps(result) if as_json else "\n".join(text))
    if result["problems"]:
        raise typer.Exit(2)


@app.command()
def train(
    data: Data,
    root: Root = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; needed unless --dry-run.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Name or file of a recipe: `gpaco recipes` lists them.")] = None,
    paper: Paper = False,
    task: Task = None,
    method: Annotated[
        str | None, typer.Option(help="gpaco, paco, supcon, multitask, ce, balanced-softmax, ...")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="resnet8, resnet32, timm's names; deeplabv3plus-resnet50, upernet-swin-tiny, ...")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="safetensors file, or the word hub: timm's download.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Times that every image is seen.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step, over all processes.")] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate.")] = None,
    size: Annotated[int | None, typer.Option(help="Width and height of an input image.")] = None,
    long_tail: Annotated[float | None, typer.Option(help="Make training long-tailed by this factor.")] = None,
    validation: Annotated[float | None, typer.Option(help="Share of training held back to choose the epoch.")] = None,
    part: Annotated[str | None, typer.Option("--train", help="What trains: all, last-block, head or lora.")] = None,
    amp: Annotated[str | None, typer.Option(help="Mixed precision: off, bf16 or fp16.")] = None,
    ghost_batch: Annotated[int | None, typer.Option(hidden=True)] = None,  # 26 that are shown are enough
    on_bad_image: Annotated[str | None, typer.Option(help="error: stop; skip: leave it out and list it.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that load images.")] = None,
    device: Device = None,
    compile: Annotated[bool | None, typer.Option(hidden=True)] = None,
    tune_prior: TunePrior = False,
    seed: Seed = None,
    settings: Set = [],  # noqa: B006 - typer makes a new one for each call
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Try everything with two steps; keep nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Train a classifier or a segmenter. The same command with the same folder resumes where it stopped."""
    given = {**locals(), "train": part, "tune_prior": tune_prior or None}
    from gpaco.api.train import dry_run as try_out
    from gpaco.api.train import train as run_training
    from gpaco.recipes.request import FLAGS

    flags = {name: given[name] for name in FLAGS if name in given}
    screen = display(as_json)
    if out is None and not dry_run:
        raise UserError("train needs a folder for its results", "--out FOLDER; to try only: --dry-run")
    if out is None or dry_run:
        try_out(data, recipe=recipe, paper=paper, settings=settings, device=device, say=screen, **flags)
        if as_json:
            print(json.dumps({"dry_run": "everything works"}))
        return
    run = run_training(
        data,
        out=out,
        recipe=recipe,
        paper=paper,
        settings=settings,
        device=device,
        say=screen,
        show=screen.show,
        **flags,
    )
    if speaks():
        if (run.folder / "metrics.json").is_file():  # not without data to evaluate on
            print_figures(run.metrics, as_json)
        page = " and page" if (run.folder / "report.html").is_file() else ""  # not with train.report=false
        screen(f"The run, with its model{page}: {run.folder}")


@app.command()
def evaluate(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN... [DATA]", help="One run or more (an ensemble), then data if not the run's own."),
    ],
    root: Annotated[
        Path | None, typer.Option(help="Folder that paths in a table or list start from, if not the run's.")
    ] = None,
    prior: Prior = None,
    unbiased: Unbiased = False,
    tune_prior: TunePrior = False,
    many: Annotated[float | None, typer.Option(help="Classes with more training images are 'many'.")] = None,
    few: Annotated[float | None, typer.Option(help="Classes with fewer training images are 'few'.")] = None,
    restrict: Restrict = False,
    checkpoint: Annotated[str, typer.Option(help="Which one: best or last.")] = "best",
    scales: Scales = None,
    flip: Flip = False,
    window: Window = None,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(help="File for the figures, as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Figures of a run on its test data, or on other data."""
    from gpaco.api.evaluate import evaluate as evaluate_runs
    from gpaco.tasks.classification.priors import in_words, read_tuned
    from gpaco.training.run import as_run, is_run, unfinished

    runs = [path for path in paths if is_run(path)]
    others = [path for path in paths if not is_run(path)]
    if not runs:
        as_run(paths[0])  # says what is wrong with it
    if len(others) > 1:
        raise UserError(f"{others[0]} and {others[1]} are both no runs", "give runs, then at most one set of data")
    screen = display(as_json)
    with screen.working("evaluating") as progress:
        result = evaluate_runs(
            runs,
            others[0] if others else None,
            root=root,
            prior=prior,
            unbiased=unbiased,
            tune_prior=tune_prior,
            many=many,
            few=few,
            restrict=restrict,
            which=checkpoint,
            device=device,
            out=out,
            show=progress,
            say=screen,
            **inference_options(scales, flip, window),
        )
    for line in filter(None, map(unfinished, runs)):
        screen(line)
    for tuned in map(read_tuned, runs if "tuned" in result else []):
        if tuned:
            screen(in_words(tuned))
    if speaks():
        print_figures(result, as_json)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A run.")],
    paths: Annotated[list[Path], typer.Argument(help="Images, folders, or .txt lists.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help=".csv or .jsonl file, replaced if it is there; of a segmenter a folder for its masks. Unless "
            "given, predictions.csv (none with --json) or the folder predictions, which is not replaced.",
        ),
    ] = None,
    prior: Prior = None,
    unbiased: Unbiased = False,
    scales: Scales = None,
    flip: Flip = False,
    window: Window = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """The class of each image, or of each pixel. A file that cannot be read is a row with its error."""
    from gpaco.api.predict import predict as predict_files
    from gpaco.system.words import counted
    from gpaco.tasks.classification.priors import in_words, read_tuned
    from gpaco.training.run import as_run, unfinished

    segments = as_run(run).recipe.train.task == "segmentation"
    place = out or output_path(segments, as_json)
    screen = display(as_json)
    how = inference_options(scales, flip, window)
    with screen.working("predicting") as progress:
        rows = predict_files(
            run, list(paths), out=place, prior=prior, unbiased=unbiased, device=device, show=progress, **how
        )
    if as_json:
        print(json.dumps(rows))
    bad = sum(row["error"] is not None for row in rows)
    if bad == len(rows):
        if out is None and place:
            (place / "predictions.csv" if segments else place).unlink()  # nothing in it is worth keeping
        raise UserError(f"no image could be read: {rows[0]['error']}", "give images that can be opened")
    if line := unfinished(run):
        screen(line)
    if tuned := read_tuned(run):
        screen(in_words(tuned))
    if not (as_json or segments) and len(rows) <= 10:
        for row in rows:
            print(row["error"] or f"{row['path']}: {row['class']} ({row['probability']:.3f})")
    what = f"{counted(len(rows), 'file')}, {bad} of them could not be read" if bad else counted(len(rows), "image")
    screen(f"{what}: {place}" if place else what)


def output_path(segments: bool, as_json: bool) -> Path | None:
    """Return where predictions go unless --out says: a table, or a folder of masks; an error if that is there."""
    if as_json and not segments:
        return None
    place = Path("predictions") if segments else Path("predictions.csv")
    table = place / "predictions.csv" if segments else place
    if table.exists():
        raise UserError(f"there is {table} already", f"give another name, or replace it: --out {place}")
    return place


@app.command()
def compare(
    data: Data,
    out: Out,
    root: Root = None,
    methods: Annotated[str, typer.Option(help="Separated by commas; gpaco+prior=counts has settings of its own.")] = (
        "ce,balanced-softmax,gpaco"
    ),
    seeds: Annotated[int, typer.Option(help="Runs of each method.")] = 3,
    model: Annotated[str | None, typer.Option(help="As for train.")] = None,
    weights: Annotated[str | None, typer.Option(help="As for train.")] = None,
    size: Annotated[int | None, typer.Option(help="As for train.")] = None,
    part: Annotated[str | None, typer.Option("--train", help="As for train; head: images are embedded once.")] = None,
    epochs: Annotated[int | None, typer.Option(help="As for train.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="As for train.")] = None,
    lr: Annotated[float | None, typer.Option(help="As for train.")] = None,
    long_tail: Annotated[float | None, typer.Option(help="As for train.")] = None,
    validation: Annotated[float | None, typer.Option(help="As for train.")] = None,
    recipe: Annotated[str | None, typer.Option(help="As for train.")] = None,
    device: Device = None,
    settings: Set = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Train several methods with several seeds; one table. The same command resumes; every cell is a run."""
    given = {**locals(), "train": part}
    from gpaco.api.compare import compare as compare_methods
    from gpaco.api.compare import split_methods, table
    from gpaco.recipes.request import FLAGS

    flags = {name: given[name] for name in FLAGS if name in given}
    screen = display(as_json)
    result = compare_methods(
        data,
        split_methods(methods),
        seeds=seeds,
        out=out,
        settings=settings,
        recipe=recipe,
        device=device,
        say=screen,
        show=screen.show,
        **flags,
    )
    if speaks():
        print(json.dumps(result) if as_json else table(result))
        screen(f"The table, and a page about the first seed: {out / 'comparison.md'}, {out / 'report.html'}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="One run or more on the same classes.")],
    out: Annotated[Path, typer.Option("--out", help="HTML file; its numbers go to a folder beside it.")] = Path(
        "report.html"
    ),
    pictures: Annotated[bool, typer.Option(help="Show images of the data, if it is there.")] = True,
) -> None:
    """Write a page about one or more runs. Where they fail along the class frequencies, why, and what would help."""
    from gpaco.api.report import report as write_report

    print(write_report(list(runs), out, with_pictures=pictures, say=display(as_json=True)))


@app.command()
def robustness(
    run: Annotated[Path, typer.Argument(help="A run.")],
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Images to corrupt, if not the run's own; or ImageNet-C, -R, -A, -V2, -Sketch, CIFAR-10-C."
        ),
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="For mCE: another run, or alexnet (ImageNet only).")] = None,
    clean: Annotated[Path | None, typer.Option(help="Clean images that belong to ImageNet-C or CIFAR-C.")] = None,
    corruptions: Annotated[
        str | None, typer.Option(help="Comma-separated names, or noise, blur, weather or digital.")
    ] = None,
    severities: Annotated[str | None, typer.Option(help="Comma-separated, 1 to 5.")] = None,
    subset: Annotated[int | None, typer.Option(help="A quick look at so many images, of all classes.")] = None,
    seed: Annotated[int, typer.Option(help="Of the corruptions and the subset.")] = 0,
    restrict: Restrict = False,
    prior: Prior = None,
    unbiased: Unbiased = False,
    on_bad_image: Annotated[str, typer.Option(help="error or skip.")] = "error",
    workers: Annotated[int | None, typer.Option(help="Processes that make images; one for each core.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; cuda if there is one, else cpu.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results, if not the run's.")] = None,
    as_json: Json = False,
) -> None:
    """Errors on corrupted images, by corruption, severity and group of classes. Resumes where it stopped."""
    options = {name: value for name, value in locals().items() if name != "as_json"}
    from gpaco.metrics.robustness import table
    from gpaco.tasks.classification.robustness import robustness as test_robustness

    screen = display(as_json)
    result = test_robustness(**options, say=screen, bar=screen.working)
    print(json.dumps(result) if as_json else table(result))
    if data is None and out is None:
        words = shlex.join(["gpaco", "report", str(run), "--out", str(run / "report.html")])
        screen(f"on the run's page: {words}")
