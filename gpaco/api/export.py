"""export(): a trained model as one file that runs elsewhere: ONNX, torch.export, or the weights of its backbone.

An exported graph takes `images` (N, 3, H, W) uint8 in RGB, with any N, and returns `logits`, (N, C) or for a segmenter
(N, C, H, W). Normalization, a tuned prior, `prior` and `unbiased` are part of the graph. Everything else needed to use
it is stored in the file as JSON under the name "gpaco": classes, input size, how to resize images. Before the file gets
its final name, it is run and compared with the model.
"""

import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import save

from gpaco import __version__
from gpaco.errors import UserError
from gpaco.models.export import compare_logits, noise_images, write_onnx, write_torch
from gpaco.system.faults import explained
from gpaco.system.files import write
from gpaco.system.outputs import output_file
from gpaco.system.progress import Say, quiet
from gpaco.tasks.classification import export as classification
from gpaco.tasks.exportable import Size
from gpaco.tasks.segmentation import export as segmentation
from gpaco.training.run import Runs, of_one_task

KINDS = {".onnx": "ONNX", ".pt2": "torch.export", ".safetensors": "weights of the backbone"}
MARKS = {".onnx": '{"gpaco": "', ".pt2": '{"gpaco": "', ".safetensors": '"gpaco":"'}  # in the metadata
EXPORTABLE = {"classification": classification.exportable, "segmentation": segmentation.exportable}


def export(
    runs: Runs,
    out: Path | str,
    *,
    prior: str | None = None,
    unbiased: bool = False,
    size: Size | None = None,
    which: str = "best",
    say: Say = quiet,
) -> dict[str, Any]:
    """Write the model of a run, or an ensemble of several (the mean of their logits), to a file.

    The file is .onnx, .pt2 (torch.export) or .safetensors (the backbone of one run, for `--weights`).

    Args:
        prior: for a classifier, the class distribution expected at test time: "uniform", "train" or a CSV file.
        unbiased: for a classifier, as in `evaluate`.
        size: for a segmenter, height and width of the input; by default the size it was trained for.
        which: "best" or "last".

    >>> export("runs/first", "model.onnx", prior="uniform")["difference"] < 1e-3
    True
    """
    several = of_one_task(runs)
    path = output_file(out, MARKS, [place for run in several for place in run.recipe.data.places])
    kind = path.suffix.lower()
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent}", "create it first, or choose another --out")
    weights_only = kind == ".safetensors"
    if weights_only and len(several) > 1:
        raise UserError("an ensemble has several backbones", "export them one by one")
    if weights_only and (prior is not None or unbiased or size is not None):
        raise UserError("a backbone has neither classes nor a size", "leave out --prior, --unbiased and --size")
    found = EXPORTABLE[several[0].recipe.train.task](several, prior=prior, unbiased=unbiased, size=size, which=which)
    if weights_only and not found.weights:
        raise UserError(
            "the experts of this run are narrower than its backbone: no other training can start from them",
            "export .onnx or .pt2, or the run of another method",
        )
    about = json.loads(json.dumps(found.about))  # as it is in the file
    difference = None
    work = path.with_name(f".{path.stem}.writing{path.suffix}")  # renamed if there is no error
    with explained(f"cannot write {path}", ""):
        try:
            if weights_only:
                weights = {key: value.contiguous() for key, value in found.weights.items()}
                write(work, save(weights, metadata={"gpaco": __version__}))
            else:
                say(f"writing {KINDS[kind]}")
                image_size = about["input"]["size"]
                write_graph = write_onnx if kind == ".onnx" else write_torch
                exported = write_graph(found.module, noise_images(2, image_size), about, work)
                say("comparing it with the model")
                difference = compare_logits(found.module, exported, image_size, found.batches)
            os.replace(work, path)
        finally:
            work.unlink(missing_ok=True)
    return {
        "path": str(path),
        "kind": KINDS[kind],
        "bytes": path.stat().st_size,
        "difference": difference,
        "about": None if weights_only else about,
    }
