"""The demo: three methods on long-tailed handwritten digits, a table and a page."""

from pathlib import Path
from typing import Any

import torch

from gpaco.api.compare import compare, table
from gpaco.system.progress import Say, Show, quiet

METHODS = ("ce", "balanced-softmax", "gpaco")
# Selected on training images that the long tail leaves out, never on test images, for under 90 seconds on two cores.
# All images train and the last epoch counts: the rarest class has two images, too few for validation.
SETTINGS = (
    "data.validation=0",
    "train.epochs=40",
    "train.batch_size=32",
    "optimizer.lr=0.05",
    "method.memory=256",
    "train.checkpoint_every=20",
)


def run_demo(
    out: Path | str = "demo",
    seeds: int = 1,
    say: Say = print,
    show: Show | None = None,
) -> dict[str, Any]:
    """Compare the methods on long-tailed digits and write the page: `gpaco demo`."""
    folder = Path(out)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # images of 8 pixels are too small to gain from threads
    result = compare(
        "digits",
        METHODS,
        seeds=seeds,
        out=folder,
        settings=SETTINGS,
        long_tail=50,
        say=say,
        details=quiet,
        show=show,
    )
    torch.set_num_threads(threads)
    say(table(result))
    say(f"page: {folder / 'report.html'}")
    return result
