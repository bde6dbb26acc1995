"""Print the files of gpaco that a training run passes through, in order: python benchmarks/walk.py

Follows every call of `gpaco train digits` in the main process with `sys.setprofile`: first up to the first
`optimizer.step`, then within one later step. All modules are imported before, so that their bodies do not count.
"""

import pkgutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

import gpaco
from gpaco.cli.main import main

HOME = Path(gpaco.__file__).parent
LIMITS = {"to the first optimizer.step": 45, "in a step": 18}


class Walk:
    """The files in which functions are called, in order, until training has taken a few steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.files: dict[str, dict[Path, int]] = {name: {} for name in LIMITS}
        self.known: dict[CodeType, Path | None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self.known:
            path = Path(code.co_filename)
            self.known[code] = path.relative_to(HOME) if HOME in path.parents else None
        file = self.known[code]
        if file is not None and self.steps in (0, 2):
            name = "to the first optimizer.step" if self.steps == 0 else "in a step"
            self.files[name].setdefault(file, len(self.files[name]))

    def count(self, *_: Any) -> None:
        self.steps += 1


def walk() -> dict[str, list[Path]]:
    """The files, in the order in which they are entered."""
    for module in pkgutil.walk_packages(gpaco.__path__, "gpaco."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    seen = Walk()
    register_optimizer_step_pre_hook(seen.count)
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["gpaco", "train", "digits", "--out", f"{folder}/run", "--epochs", "1"]
        sys.argv += ["--batch-size", "64", "--set", "train.report=false"]
        sys.setprofile(seen)
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.setprofile(None)
    return {name: list(files) for name, files in seen.files.items()}


if __name__ == "__main__":
    for name, files in walk().items():
        print(f"\n{len(files)} files {name} (at most {LIMITS[name]}):")
        print("\n".join(f"  {file}" for file in files))
