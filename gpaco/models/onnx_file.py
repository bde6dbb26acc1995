"""An exported ONNX file, ready to run on the CPU. Needs no torch."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpaco.errors import EnvironmentProblem, UserError
from gpaco.system.words import one_line

NEEDED = ("task", "classes", "counts", "groups", "input")


class OnnxFile(NamedTuple):
    """A network in a file, and what `gpaco export` wrote about it."""

    path: Path
    session: Any
    about: dict[str, Any]

    def logits(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the logits of images (N, 3, H, W)."""
        return np.asarray(self.session.run(["logits"], {"images": images})[0])


def is_onnx(path: object) -> bool:
    """Return whether a path names an ONNX file, rather than a run."""
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
    except Exception as error:  # its errors have no type of their own
        raise UserError(
            f"{path} is not an ONNX model: {one_line(error)}", "export it again: gpaco export RUN"
        ) from error
    text = session.get_modelmeta().custom_metadata_map.get("gpaco")
    try:
        about = json.loads(text or "{}")
    except ValueError:
        about = {}
    missing = [name for name in NEEDED if name not in about]
    if missing:
        what = f"has no {missing[0]} in its metadata" if text else "was not written by gpaco: it has no metadata"
        raise UserError(f"{path} {what}", "export it again with this version: gpaco export RUN --out model.onnx")
    return OnnxFile(path, session, about)
