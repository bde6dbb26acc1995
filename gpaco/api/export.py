"""A trained model as one file that runs elsewhere: ONNX, torch.export, or its backbone's weights.

An exported graph takes pictures as they are, `images` (N, 3, H, W) uint8 in RGB, any N, and gives `logits`, (N, C) or
of a segmenter (N, C, H, W). Normalization, a tuned prior, `prior` and `unbiased` are inside. What else one has to know
is in the file too, as JSON under the name "gpaco": classes, size, how pictures get to that size. The file is run and
compared with the model before it gets its name.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from gpaco import __version__
from gpaco.errors import EnvironmentProblem, Problem, UserError, nearest
from gpaco.recipes.settings import Recipe
from gpaco.system.faults import explained
from gpaco.system.files import write
from gpaco.system.progress import Say
from gpaco.tasks.classification.card import Card
from gpaco.tasks.classification.predictor import Predictor, load_classifiers
from gpaco.tasks.classification.priors import Correction, check_correction, final_logits
from gpaco.tasks.segmentation.card import Card as SceneCard
from gpaco.training.run import Run, as_run

Size = tuple[int, int]  # height, width
KINDS = {".onnx": "ONNX", ".pt2": "torch.export", ".safetensors": "weights of the backbone"}
LARGEST = 2**31 - 2**20  # bytes of an ONNX file, without room for its graph
BATCHES = {"classification": (1, 2, 7), "segmentation": (1, 2)}  # pictures at a time that a file is tried with
TOLERANCE = 1e-4  # difference of logits, as a share of the largest
READING = (  # in words, what `read_image` does to a file
    "turn it upright by its EXIF orientation",
    "scale values of 16 bits to 8: 0 to 255, 4095 or 65535, the first that holds the largest, becomes 0 to 255",
    "put white behind transparent parts",
    "make it RGB",
)


class Answers(nn.Module):
    """A loaded classifier with what `final_logits` does after it."""

    shift: Tensor

    def __init__(self, predictor: Predictor, *, prior: str | None, unbiased: bool) -> None:
        super().__init__()
        card = predictor.card
        self.predictor = predictor
        untuned = unbiased and card.tuned is None
        self.correction = Correction(card, unbiased=True) if untuned else nn.Identity()
        nothing = np.zeros((1, len(predictor.classes)), np.float32)
        self.register_buffer("shift", torch.from_numpy(final_logits(nothing, card, prior=prior)))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.correction(self.predictor(images)) + self.shift
        return logits


def export(
    run: Run | Path | str,
    out: Path | str,
    *,
    prior: str | None = None,
    unbiased: bool = False,
    size: Size | None = None,
    which: str = "best",
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Write the model of a run to a file: .onnx, .pt2 (torch.export) or .safetensors (its backbone, for `--weights`).

    Args:
        prior: of a classifier, the classes expected where it will be used: "uniform", "train" or a CSV file.
        unbiased: of a classifier, as for `evaluate`.
        size: of a segmenter, height and width of its pictures; unless given, those that it was trained to look at.
        which: "best" or "last".
    """
    run, path = as_run(run), Path(out)
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise UserError(
            f"a model cannot be written to {path.name!r}{nearest(kind, KINDS)}",
            f"use a name that ends with {', '.join(KINDS)}",
        )
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent}", "make it first, or choose another --out")
    weights_only = kind == ".safetensors"
    if weights_only and (prior is not None or unbiased or size is not None):
        raise UserError("a backbone has neither classes nor a size", "leave out --prior, --unbiased and --size")
    if run.recipe.train.task == "segmentation":
        if prior is not None or unbiased:
            raise UserError("--prior and --unbiased are of classifiers", "leave them out")
        model, body, about = _segmenter(run, size, which)
    else:
        if size is not None:
            raise UserError("a classifier has the size that it was trained with", "leave out --size")
        model, body, about = _classifier(run, prior, unbiased, which)
    with _beside(path) as work:
        if weights_only:
            write(work, save({key: value.contiguous() for key, value in body.items()}))
            difference = None
        else:
            say(f"writing {KINDS[kind]}")
            images = _pictures(2, about["input"]["size"])
            answer = (_to_onnx if kind == ".onnx" else _to_torch)(model, images, about, work)
            say("comparing it with the model")
            difference = _difference(model, answer, about["input"]["size"], BATCHES[about["task"]])
    return {
        "path": str(path),
        "kind": KINDS[kind],
        "bytes": path.stat().st_size,
        "difference": difference,
        "about": None if weights_only else about,
    }


def _classifier(
    run: Run, prior: str | None, unbiased: bool, which: str
) -> tuple[nn.Module, Mapping[str, Tensor], dict[str, Any]]:
    """The model with its corrections, the weights of its backbone, and what is to know about it."""
    (predictor,) = load_classifiers([run], which=which)
    check_correction(predictor.card, prior, unbiased)
    own = predictor.card
    if own.whole:
        steps = ["resize to the size, whatever the shape"]
    else:
        steps = [f"resize the shorter side to {own.resize}", "cut the size out of the middle"]
    about = _about(run.recipe, own, (own.size, own.size), ["N", "C"]) | {
        "steps": [*READING, *steps, "channels first, uint8"],
        "whole": own.whole,
        "resize": own.resize,
        "interpolation": own.interpolation,
        "prior": Path(prior).name if prior else "uniform" if own.tuned else own.assumes,  # a file by its name
    }
    return Answers(predictor, prior=prior, unbiased=unbiased).eval(), predictor.model.backbone.state_dict(), about


def _segmenter(run: Run, size: Size | None, which: str) -> tuple[nn.Module, Mapping[str, Tensor], dict[str, Any]]:
    from gpaco.tasks.segmentation.network import encoder_weights
    from gpaco.tasks.segmentation.predictor import load_segmenter
    from gpaco.tasks.segmentation.transforms import fitting

    predictor = load_segmenter(run, which=which)
    own = predictor.card
    factor = fitting(own.image_size, (own.base_size[0], own.base_size[1])) if own.base_size else 1.0
    height, width = size or own.window or [max(1, round(side * factor)) for side in own.image_size]
    if height < 1 or width < 1:
        raise UserError(f"pictures of {height} x {width} pixels are none", "--size 360x480")
    windows = ["cut out a window of the size every stride pixels, the last one ending with the picture"]
    about = _about(run.recipe, own, (height, width), ["N", "C", "H", "W"]) | {
        "steps": [
            *READING,
            "resize the picture so that it fits into base_size (shorter side, longer side)",
            *(windows if own.window else ["if that is not the size, resize it to the size"]),
            "channels first, uint8",
            *(["average the logits where windows overlap"] if own.window else []),
            "resize the logits to the picture's own size: the class of a pixel is the largest",
        ],
        "interpolation": "bilinear between pixel centers, without smoothing",
        "palette": own.palette,
        "base_size": own.base_size,
        "window": own.window,
        "stride": own.stride,
    }
    return predictor, encoder_weights(predictor.model.encoder), about


def _about(recipe: Recipe, own: Card | SceneCard, size: Size, output: list[str]) -> dict[str, Any]:
    return {
        "gpaco": __version__,
        "task": recipe.train.task,
        "model": own.model,
        "method": recipe.method.name,
        "classes": list(own.classes),
        "counts": own.counts,
        "input": {"name": "images", "shape": ["N", 3, *size], "dtype": "uint8", "size": list(size)},
        "output": {"name": "logits", "shape": output, "dtype": "float32"},
    }


def _to_onnx(model: nn.Module, images: Tensor, about: dict[str, Any], path: Path) -> Callable[[Tensor], Tensor]:
    """Write it, and return what the file says to pictures."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch needs it
    except ImportError as error:
        raise EnvironmentProblem(
            "ONNX needs onnx, onnxscript and onnxruntime, which are not installed", "pip install 'gpaco[export]'"
        ) from error
    weight = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    if weight > LARGEST:
        raise UserError(
            f"the model has {weight / 2**30:.1f} GB of weights, and one ONNX file holds 2", "use a name with .pt2"
        )
    with _quiet():
        program = torch.onnx.export(
            model,
            (images,),
            dynamo=True,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("N")},),
            verbose=False,
        )
    if program is None:  # what torch's types allow
        raise RuntimeError("torch.onnx.export gave nothing")
    program.model.metadata_props["gpaco"] = json.dumps(about)
    program.save(str(path), external_data=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda batch: torch.from_numpy(session.run(["logits"], {"images": batch.numpy()})[0])


def _to_torch(model: nn.Module, images: Tensor, about: dict[str, Any], path: Path) -> Callable[[Tensor], Tensor]:
    with _quiet():
        program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("N")},))
        torch.export.save(program, path, extra_files={"gpaco": json.dumps(about)})
        module: Callable[[Tensor], Tensor] = torch.export.load(path).module()
    return module


@torch.inference_mode()
def _difference(
    model: nn.Module, exported: Callable[[Tensor], Tensor], size: list[int], batches: Sequence[int]
) -> float:
    """The largest difference of logits; too large a one is an error."""
    worst = 0.0
    for batch in batches:
        images = _pictures(batch, size)
        expected, given = model(images), exported(images)
        scale = max(1.0, float(expected.abs().max()))
        difference = float((expected - given).abs().max())
        if not difference <= TOLERANCE * scale:
            raise Problem(
                f"the exported file differs from the model: logits by up to {difference:.2g}, so it was not kept",
                "try the other kind (.onnx, .pt2), and tell us which model it was",
            )
        worst = max(worst, difference)
    return worst


def _pictures(count: int, size: list[int]) -> Tensor:
    """Some that are not alike: noise in blocks, from fine to coarse."""
    generator = torch.Generator().manual_seed(count)
    noise = torch.randint(0, 256, (count, 3, *size), generator=generator, dtype=torch.uint8)
    for k in range(count):
        step = 2 ** (k % 5)
        coarse = noise[k, :, ::step, ::step].repeat_interleave(step, 1).repeat_interleave(step, 2)
        noise[k] = coarse[:, : size[0], : size[1]]
    return noise


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A file to write to that gets its name when all is well, and is gone when not."""
    work = path.with_name(f".{path.stem}.writing{path.suffix}")
    with explained(f"cannot write {path}", ""):
        try:
            yield work
            os.replace(work, path)
        finally:
            work.unlink(missing_ok=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporters say about themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
