"""The verbs of the command `gpaco` about files: models for elsewhere, recipes, checkpoints of others."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gpaco.cli.commands import app
from gpaco.cli.console import display
from gpaco.cli.options import Json, Paper, Prior, Set, Unbiased
from gpaco.cli.segmentation_options import pair
from gpaco.errors import UserError


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run.")],
    out: Annotated[
        Path, typer.Option("--out", help=".onnx, .pt2 (torch.export), or .safetensors: the backbone, for --weights.")
    ],
    prior: Prior = None,
    unbiased: Unbiased = False,
    size: Annotated[str | None, typer.Option(help="Of a segmenter: height x width of its pictures, 360x480.")] = None,
    checkpoint: Annotated[str, typer.Option(help="Which one: best or last.")] = "best",
    as_json: Json = False,
) -> None:
    """Write a model to one file for use elsewhere. It is compared with the run before it is kept."""
    from gpaco.api.export import export as export_run

    screen = display(as_json)
    try:
        sides = None if size is None else pair(size)
    except ValueError:
        raise UserError(f"--size {size} is not understood", "for example --size 360x480 (height x width)") from None
    result = export_run(run, out, prior=prior, unbiased=unbiased, size=sides, which=checkpoint, say=screen)
    if as_json:
        print(json.dumps(result))
    difference = result["difference"]
    same = "" if difference is None else f", logits differ by {difference:.1g} at most"
    screen(f"{result['kind']}, {result['bytes'] / 2**20:.1f} MB{same}: {out}")


@app.command()
def recipes(
    word: Annotated[str, typer.Argument(help="Only those with this in their name, table or row.")] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables of docs/recipes.md.")] = False,
    as_json: Json = False,
) -> None:
    """List the recipes. They are rows of the paper's tables, with its number and ours."""
    from dataclasses import asdict

    from gpaco.recipes import listing

    if markdown:
        print(listing.markdown(), end="")
        return
    rows = listing.rows(word)
    if as_json:
        print(json.dumps([{"name": row.name, "data": row.data} | asdict(row.source) for row in rows]))
    else:
        print(listing.table(rows))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A recipe's name or file, a run, or the word default.")],
    paper: Paper = False,
) -> None:
    """Print a recipe complete, with a word on every setting."""
    from gpaco.recipes.recipe import dumps, load
    from gpaco.recipes.settings import Recipe

    print(dumps(Recipe() if name == "default" else load(name, paper=paper), explain=True), end="")


@app.command()
def convert(
    file: Annotated[Path, typer.Argument(help="A .pth, .pt, .bin or .tar file that torch.save wrote.")],
    out: Annotated[Path, typer.Option("--out", help="A name with .safetensors for weights, a folder for a run.")],
    model: Annotated[str | None, typer.Option(help="The network, if the file does not name it.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe that a run was trained with.")] = None,
    classes: Annotated[
        Path | None, typer.Option(help="Text file with a class name per line; numbers from 0 without.")
    ] = None,
    counts: Annotated[
        Path | None, typer.Option(help="CSV file with the training images of each class: rows class,count.")
    ] = None,
    settings: Set = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Convert a checkpoint that torch.save wrote to safetensors, or to a run; no code in it is run."""
    from gpaco.api.convert import convert as convert_file

    result = convert_file(
        file,
        out,
        model=model,
        recipe=recipe,
        settings=settings,
        classes=classes,
        counts=counts,
        say=display(as_json),
    )
    if as_json:
        print(json.dumps(result))
