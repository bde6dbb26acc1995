"""Words of the command line that several verbs take."""

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[str, typer.Argument(help="Folder, table, list, archive, or the word digits.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for the results.")]
Root = Annotated[str | None, typer.Option("--root", help="Folder that the paths of a table or list start from.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps; cuda if there is one, else cpu.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Paper = Annotated[bool, typer.Option("--paper", help="A recipe by the paper's text where the released code differs.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Of weights, order and augmentation.")]
Set = Annotated[
    list[str],
    typer.Option("--set", metavar="section.key=value", help="Any setting, repeatable: `gpaco show default`."),
]
Prior = Annotated[
    str | None, typer.Option("--prior", help="Classes expected at test time: uniform, train, or a CSV file.")
]
Unbiased = Annotated[
    bool, typer.Option("--unbiased", help="Correct a run trained with the paper's prior for the bias of its loss.")
]
TunePrior = Annotated[
    bool, typer.Option("--tune-prior", help="Choose tau * log prior on validation data; kept with the run.")
]
Restrict = Annotated[bool, typer.Option("--restrict", help="Let the model answer with classes of the data only.")]
Task = Annotated[str | None, typer.Option("--task", help="classification or segmentation (pictures and masks).")]
Scales = Annotated[
    str | None, typer.Option("--scales", help="Of a segmenter: sizes to average over, as 0.5,0.75,1,1.25,1.5,1.75.")
]
Flip = Annotated[bool, typer.Option("--flip", help="Of a segmenter: average with the mirrored picture.")]
Window = Annotated[
    str | None, typer.Option("--window", help="Of a segmenter: slide it, as 480 or 480x640; /320 for a stride.")
]
