"""Exports a network to one file, with ONNX or torch.export, and compares the file with the network.

The graph takes `images` (N, 3, H, W) uint8 with any N and returns `logits`.
"""

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gpaco.errors import EnvironmentProblem, Problem, UserError, installing

LARGEST = 2**31 - 2**20  # bytes of an ONNX file, minus room for its graph
TOLERANCE = 1e-4  # difference of logits, relative to the largest


def write_onnx(model: nn.Module, images: Tensor, about: dict[str, Any], path: Path) -> Callable[[Tensor], Tensor]:
    """Write a network with `about` as its metadata, and return a function that runs the file."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch needs it
    except ImportError as error:
        raise EnvironmentProblem(
            "ONNX needs onnx, onnxscript and onnxruntime, which are not installed", installing("export")
        ) from error
    weight = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    if weight > LARGEST:
        raise UserError(
            f"the model has {weight / 2**30:.1f} GB of weights, an ONNX file holds at most 2", "export to .pt2 instead"
        )
    with warnings.catch_warnings(action="ignore"):  # torch's exporters warn about their own code
        program = torch.onnx.export(
            model,
            (images,),
            dynamo=True,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("N")},),
            verbose=False,
        )
    if program is None:  # allowed by its type
        raise RuntimeError("torch.onnx.export returned nothing")
    program.model.metadata_props["gpaco"] = json.dumps(about)
    program.save(str(path), external_data=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda batch: torch.from_numpy(session.run(["logits"], {"images": batch.numpy()})[0])


def write_torch(model: nn.Module, images: Tensor, about: dict[str, Any], path: Path) -> Callable[[Tensor], Tensor]:
    """Do the same with torch.export."""
    with warnings.catch_warnings(action="ignore"):  # torch's exporters warn about their own code
        program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("N")},))
        torch.export.save(program, path, extra_files={"gpaco": json.dumps(about)})
        module: Callable[[Tensor], Tensor] = torch.export.load(path).module()
    return module


@torch.inference_mode()
def compare_logits(
    model: nn.Module, exported: Callable[[Tensor], Tensor], size: Sequence[int], batches: Sequence[int]
) -> float:
    """Return the largest difference of logits over batches of these sizes; above `TOLERANCE`, raise an error."""
    worst = 0.0
    for batch in batches:
        images = noise_images(batch, size)
        expected, given = model(images), exported(images)
        scale = max(1.0, float(expected.amax(1).abs().max()))  # classes that are never predicted have huge logits
        off = (expected - given).abs()
        difference = float(off.max())
        if not bool((off <= TOLERANCE * expected.abs().clamp_min(scale)).all()):
            raise Problem(
                f"the exported file was not kept: its logits differ from the model by up to {difference:.2g}",
                "try the other format (.onnx, .pt2), and report the model to us",
            )
        worst = max(worst, difference)
    return worst


def noise_images(count: int, size: Sequence[int]) -> Tensor:
    """Return different images (N, 3, H, W): noise in blocks, from fine to coarse."""
    generator = torch.Generator().manual_seed(count)
    noise = torch.randint(0, 256, (count, 3, *size), generator=generator, dtype=torch.uint8)
    for k in range(count):
        step = 2 ** (k % 5)
        coarse = noise[k, :, ::step, ::step].repeat_interleave(step, 1).repeat_interleave(step, 2)
        noise[k] = coarse[:, : size[0], : size[1]]
    return noise
