"""The first five minutes: real handwritten digits made long-tailed, three methods alike, a table and a page."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpaco.comparison import compare, table
from gpaco.pages.simple import write_page
from gpaco.run import Run

METHODS = ("ce", "balanced-softmax", "gpaco")
# Chosen on validation data, for under 90 seconds on two cores.
SETTINGS = ("train.epochs=40", "train.batch_size=32", "optimiser.lr=0.05", "method.memory=256", "method.alpha=0.05")


def run_demo(
    out: Path | str = "demo",
    seeds: int = 1,
    say: Callable[[str], None] = print,
    show: Callable[[dict[str, Any]], None] = lambda row: None,
) -> dict[str, Any]:
    """Compare the methods on long-tailed digits and write the page; what `gpaco demo` does."""
    folder = Path(out)
    result = compare(
        "digits", METHODS, seeds=seeds, out=folder, settings=SETTINGS, long_tail=50, say=lambda line: None, show=show
    )
    say(table(result))
    runs = [Run(Path(row["runs"][0])) for row in result["rows"]]
    write_page(runs, folder / "report.html", [row["method"] for row in result["rows"]])
    say(f"The page about it: {folder / 'report.html'}")
    return result
