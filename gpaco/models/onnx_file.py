"""An exported ONNX file, ready to run on the CPU. Needs no torch."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpaco.errors import EnvironmentProblem, UserError
from gpaco.system.words import one_line

_BOTH = ("classes", "counts", "groups", "input")
NEEDED = {  # required metadata, by task
    "classification": (*_BOTH, "resize", "whole", "interpolation", "shares"),
    "segmentation": (*_BOTH, "palette", "base_size", "stride"),
}


class OnnxFile(NamedTuple):
    """A network in a file, and what `gpaco export` wrote about it."""

    path: Path
    session: Any
    about: dict[str, Any]

    def logits(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the logits of images (N, 3, H, W)."""
        return np.asarray(self.session.run(["logits"], {"images": images})[0])


def is_onnx(path: object) -> bool:
    """Return whether a path names an ONNX file rather than a run."""
    return isinstance(path, Path | str) and Path(path).suffix.lower() == ".onnx"


def open_onnx(path: Path) -> OnnxFile:
    """Return the network in a file that `gpaco export` wrote."""
    try:
        import onnxruntime
    except ImportError as error:
        raise EnvironmentProblem(
            "an .onnx file needs onnxruntime, which is not installed", "pip install onnxruntime"
        ) from error
    if not path.is_file():
        raise UserError(f"there is no file {path}", "write one: gpaco export RUN --out model.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # it raises no specific exception type
        raise UserError(
            f"{path} is not an ONNX model: {one_line(error)}", "export it again: gpaco export RUN"
        ) from error
    about, wrong = read_about(session.get_modelmeta().custom_metadata_map.get("gpaco"))
    if wrong:
        raise UserError(f"{path} {wrong}", "export it again with this version: gpaco export RUN --out model.onnx")
    return OnnxFile(path, session, about)


def read_about(text: str | None) -> tuple[dict[str, Any], str]:
    """Return the metadata of a network, and what is wrong with it.

    >>> read_about('["a"]')[1], read_about('{"task": "detection"}')[1]
    ('has damaged metadata', "is for the task 'detection', which is unknown")
    """
    if not text:
        return {}, "was not written by gpaco: it has no metadata"
    try:
        about = json.loads(text)
    except ValueError:
        about = None
    if not isinstance(about, dict):
        return {}, "has damaged metadata"
    task = about.get("task")
    if task not in NEEDED:
        return {}, f"is for the task {task!r}, which is unknown"
    missing = [name for name in NEEDED[task] if name not in about]
    if not missing and not (isinstance(about["input"], dict) and isinstance(about["input"].get("size"), list)):
        missing = ["size of the input"]
    return about, f"has no {missing[0]} in its metadata" if missing else ""
