"""The demo: three methods on handwritten digits made long-tailed, a table and a page."""

from pathlib import Path
from typing import Any

import torch

from gpaco.api.compare import compare, table
from gpaco.system.progress import Say, Show, quiet

METHODS = ("ce", "balanced-softmax", "gpaco")
# Chosen on training images that the long tail leaves out, never on test images, and to take under 90 s on two cores.
# No validation split, so the last epoch is used: the rarest class has two images, too few to hold any out.
SETTINGS = (
    "data.validation=0",
    "train.epochs=40",
    "train.batch_size=32",
    "optimizer.lr=0.05",
    "method.memory=256",
    "train.checkpoint_every=20",
)


def run_demo(out: Path | str = "demo", seeds: int = 1, say: Say = print, show: Show | None = None) -> dict[str, Any]:
    """Compare the methods on long-tailed digits and write the page, for `gpaco demo`."""
    folder = Path(out)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for 8 x 8 images, threads cost more than they save
    options: dict[str, Any] = {"seeds": seeds, "out": folder, "settings": SETTINGS, "long_tail": 50}
    try:
        result = compare("digits", METHODS, say=say, details=quiet, show=show, **options)
    finally:
        torch.set_num_threads(threads)
    say(table(result))
    say(f"Report: {folder / 'report.html'}")
    return result
