"""Commands for sharing a model."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import gpaco
from gpaco.cli import options
from gpaco.cli.commands import app
from gpaco.cli.display import display


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(help="The folder of a trained run, or an exported .onnx file.")],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on. The default can be reached only from this machine.")
    ] = "127.0.0.1",
    prior: options.Prior = None,
    unbiased: options.Unbiased = False,
    device: options.Device = None,
) -> None:
    """Serve a model: a page in the browser, and JSON at /predict.

    An .onnx file is served without torch.
    """
    where: dict[str, Any] = {"host": host, "port": port, "say": display()}
    if run.suffix.lower() == ".onnx":
        from gpaco.api.exported import serve_file

        serve_file(run, prior=prior, unbiased=unbiased, device=device, **where)
    else:
        gpaco.serve(run, prior=prior, unbiased=unbiased, device=device, **where)


@app.command()
def push(
    run: options.Run,
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Name of the model on the Hugging Face hub.")],
    private: Annotated[bool, typer.Option("--private", help="Make the model private.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the folder RUN/hub without uploading it.")] = False,
    as_json: options.Json = False,
) -> None:
    """Share a model on the Hugging Face hub, with a model card.

    Others load it with gpaco.load("hub:OWNER/NAME").
    """
    screen = display(as_json)
    result = gpaco.push(run, name, private=private, dry_run=dry_run, say=screen)
    if as_json:
        print(json.dumps(result))
    for file, size in result["files"].items():
        screen(f"{file:<22} {size / 1000:10,.0f} kB")
    screen(result["address"] or f"nothing was uploaded: {result['folder']}")
