"""Commands that read or write files: exported models, checkpoints of other code, recipes."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import gpaco
from gpaco.cli import options
from gpaco.cli.commands import app
from gpaco.cli.display import display
from gpaco.errors import UserError, nearest
from gpaco.recipes import listing
from gpaco.recipes.paper_rows import names
from gpaco.recipes.recipe import dumps, load
from gpaco.recipes.settings import METHODS, Recipe


@app.command()
def export(
    runs: options.Runs,
    out: Annotated[
        Path,
        typer.Option("--out", help="A .onnx or .pt2 (torch.export) model, or a .safetensors file of the backbone."),
    ],
    prior: options.Prior = None,
    unbiased: options.Unbiased = False,
    size: Annotated[
        str | None, typer.Option(help="Segmentation: height x width of the input, such as 360x480.")
    ] = None,
    checkpoint: options.Checkpoint = "best",
    as_json: options.Json = False,
) -> None:
    """Export a model, or an ensemble, to one file for use elsewhere.

    The file is kept only if its output matches that of the run.
    """
    screen = display(as_json)
    sides = None if size is None else options.pair(size, f"--size {size}")
    result = gpaco.export(list(runs), out, prior=prior, unbiased=unbiased, size=sides, which=checkpoint, say=screen)
    if as_json:
        print(json.dumps(result))
    difference = result["difference"]
    same = "" if difference is None else f", logits differ by at most {difference:.1g}"
    screen(f"{result['kind']}, {result['bytes'] / 2**20:.1f} MB{same}: {out}")


@app.command()
def recipes(
    word: Annotated[str, typer.Argument(help="List only recipes with this word in their name, table or row.")] = "",
    as_json: options.Json = False,
) -> None:
    """List the recipes: rows of the paper's tables, with the paper's number and ours."""
    rows = listing.rows(word)
    if as_json:
        print(json.dumps([{"name": row.name, "data": row.data} | asdict(row.source) for row in rows]))
    else:
        print(listing.table(rows))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name or file of a recipe, a run, a method, or the word default.")],
    paper: options.Paper = False,
) -> None:
    """Print the settings of a recipe, run or method, each with a short explanation."""
    if paper and (name in METHODS or name == "default"):
        raise UserError(f"{name} is not a recipe of the paper", "leave out --paper")
    if name in METHODS:
        print(listing.method(name), end="")
    elif name == "default":
        print(dumps(Recipe(), explain=True, every=True), end="")
    elif name.removesuffix("-paper") not in names() and (Path(name) / "recipe.toml").is_file() and not paper:
        from gpaco.training.run import Run

        print(dumps(Run(Path(name)).recipe, explain=True), end="")  # with the settings chosen by --tune
    elif name.removesuffix("-paper") in names() or Path(name).exists():
        print(dumps(load(name, paper=paper), explain=True), end="")
    else:
        known = ["default", *METHODS, *names()]
        raise UserError(
            f"there is no recipe, run or method {name!r}{nearest(name, known)}",
            "`gpaco recipes` lists recipes, `gpaco train --help` methods",
        )


@app.command()
def convert(
    file: Annotated[Path, typer.Argument(help="A .pth, .pt, .bin or .tar file written by torch.save.")],
    out: Annotated[Path, typer.Option("--out", help="A .safetensors file for weights, or a folder for a run.")],
    model: Annotated[str | None, typer.Option(help="Name of the network, if the file does not have it.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe that the run was trained with.")] = None,
    classes: Annotated[
        Path | None, typer.Option(help="Text file with one class name per line. Default: numbers from 0.")
    ] = None,
    counts: Annotated[
        Path | None, typer.Option(help="CSV file with the number of training images per class: rows class,count.")
    ] = None,
    settings: options.Set = [],  # noqa: B006
    as_json: options.Json = False,
) -> None:
    """Convert a PyTorch checkpoint to safetensors or to a run, without executing code in it."""
    arguments = {name: value for name, value in locals().items() if name != "as_json"}
    from gpaco.api.convert import convert as convert_checkpoint

    result = convert_checkpoint(**arguments, say=display(as_json))
    if as_json:
        print(json.dumps(result))
