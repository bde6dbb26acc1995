"""Reads scenes from a folder, after detecting its layout."""

from pathlib import Path

from gpaco.errors import UserError
from gpaco.system.progress import Progress, no_progress
from gpaco.tasks.segmentation.readers.benchmarks import BENCHMARKS
from gpaco.tasks.segmentation.readers.folders import decoding, own_classes, read_pairs
from gpaco.tasks.segmentation.scenes import OWN, Scenes, SceneSplits


def read_scenes(path: Path | str, progress: Progress = no_progress, *, shared: bool = False) -> SceneSplits:
    """Return the scenes in a folder of any known layout.

    `progress` reports on masks that must be read to find the number of classes; with `shared`, each process reads its
    share of them.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}", "segmentation data is a folder of images and masks")
    for reader in BENCHMARKS:  # the first that knows the layout reads it; user folders come last
        if (splits := reader(folder)) is not None:
            return with_own_classes(splits, folder)
    if (splits := read_pairs(folder, progress, shared=shared)) is not None:
        return splits
    raise UserError(
        f"{folder} has no known layout of images and masks",
        "create two folders in it, images and masks, with files of the same names",
    )


def with_own_classes(splits: SceneSplits, folder: Path) -> SceneSplits:
    """Handle user data in the layout of a benchmark: it has a table of classes, and numbers start at 0."""
    own = own_classes(folder)
    if own is None:
        return splits
    classes, colors, notes = own
    parts = {
        name: Scenes(part.images, part.masks, classes, decoding(classes, colors), part.names, colors)
        for name, part in splits.parts()
    }
    reader = f"{OWN} in the layout of {splits.reader.partition(',')[0]}"
    return SceneSplits(parts["train"], parts.get("val"), parts.get("test"), reader, tuple(notes))
