"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gpaco.errors import UserError

Data = Annotated[
    str, typer.Argument(help="A folder, CSV table, .txt list or archive of labeled images, or the word digits.")
]
Run = Annotated[Path, typer.Argument(help="The folder of a trained run.")]
Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="The folder of a trained run, or several as an ensemble.")
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the results.")]
Root = Annotated[str | None, typer.Option("--root", help="Folder that the paths in a table or list are relative to.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps. Default: cuda if available, else cpu.")]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]
Checkpoint = Annotated[str, typer.Option(help="Which checkpoint to use: best or last.")]

# Training
Recipe = Annotated[str | None, typer.Option(help="Name or TOML file of a recipe; `gpaco recipes` lists names.")]
Paper = Annotated[
    bool, typer.Option("--paper", help="Use the values of the paper's text where the released code differs.")
]
Task = Annotated[str | None, typer.Option("--task", help="classification or segmentation. Default: classification.")]
Model = Annotated[
    str | None,
    typer.Option(help="resnet8, resnet32, any timm model, or DECODER-ENCODER. Default: chosen from the data."),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Pretrained weights: a .safetensors file, hub (download timm's), package (installed) or none (from "
        "scratch). Default: package for photos, none for small images."
    ),
]
Size = Annotated[int | None, typer.Option(help="Width and height of input images. Default: chosen from the data.")]
Epochs = Annotated[int | None, typer.Option(help="Number of epochs. Default: chosen from the data.")]
BatchSize = Annotated[
    int | None, typer.Option(help="Images per step, summed over all processes. Default: chosen from the data.")
]
Rate = Annotated[float | None, typer.Option("--lr", help="Peak learning rate. Default: chosen from the data.")]
LongTail = Annotated[
    float | None,
    typer.Option(help="Subsample training data to this ratio between largest and smallest class. Default: all."),
]
Validation = Annotated[
    float | None,
    typer.Option(help="Fraction of the training data held out to select the best epoch. Default: 0.1, 0 for heads."),
]
Part = Annotated[
    str | None, typer.Option("--train", help="Layers to train: all, last-block, head, lora or auto. Default: auto.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of weights, data order and augmentation. Default: 0.")]
Set = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="section.key=value", help="Change any setting; repeatable. `gpaco show default` lists them."
    ),
]

Tune = Annotated[
    str | None,
    typer.Option(
        "--tune", metavar="<time>", help="Search for the best head settings for this long: 5m (minutes) or 1h."
    ),
]

# Inference
Prior = Annotated[
    str | None,
    typer.Option(
        "--prior",
        help="Class distribution expected at test time: uniform, train, or a CSV file. Default: what the method "
        "assumes, mostly uniform.",
    ),
]
Unbiased = Annotated[
    bool,
    typer.Option("--unbiased", help="Remove the bias that the paper's prior (method.prior=counts) leaves."),
]
TunePrior = Annotated[
    bool,
    typer.Option("--tune-prior", help="Fit a correction of the class prior on validation data; store it in the run."),
]
Restrict = Annotated[bool, typer.Option("--restrict", help="Predict only classes that occur in the data.")]
Scales = Annotated[
    str | None, typer.Option("--scales", help="Segmentation: average over image scales, such as 0.5,1,1.5.")
]
Flip = Annotated[bool, typer.Option("--flip", help="Segmentation: average with the mirrored image.")]
Window = Annotated[
    str | None,
    typer.Option("--window", help="Segmentation: sliding window, such as 480, 480x640 or 480/320 (stride 320)."),
]


def minutes(text: str | None) -> float | None:
    """Return a time in minutes.

    >>> minutes("5m"), minutes("90s"), minutes("2h"), minutes("7")
    (5.0, 1.5, 120.0, 7.0)
    """
    if text is None:
        return None
    units = {"s": 1 / 60, "m": 1.0, "h": 60.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "m")
    try:
        return float(number) * units[unit]
    except ValueError:
        raise UserError(f"--tune {text} is not a time", "for example --tune 5m, --tune 90s or --tune 1h") from None


def inference_options(scales: str | None, flip: bool, window: str | None) -> dict[str, Any]:
    """Return the segmentation options that were given, as `predict` and `evaluate` take them.

    >>> inference_options("0.5,1", True, "480x640/320")
    {'scales': (0.5, 1.0), 'flip': True, 'window': (480, 640), 'stride': (320, 320)}
    """
    options: dict[str, Any] = {}
    if scales is not None:
        try:
            options["scales"] = tuple(float(word) for word in scales.split(","))
        except ValueError:
            raise UserError(f"--scales {scales} is not a list of numbers", "for example --scales 0.5,1,1.5") from None
    if flip:
        options["flip"] = True
    if window is not None:
        size, _, stride = window.partition("/")
        options["window"] = pair(size, f"--window {window}")
        if stride:
            options["stride"] = pair(stride, f"--window {window}")
    return options


def pair(text: str, option: str) -> tuple[int, int]:
    """Return height and width; `option` is named in the error message.

    >>> pair("480x640", "--size 480x640"), pair("480", "--size 480")
    ((480, 640), (480, 480))
    """
    height, _, width = text.partition("x")
    try:
        return int(height), int(width or height)
    except ValueError:
        raise UserError(f"{option} is not a size", "write 480, or 480x640 for height x width") from None
