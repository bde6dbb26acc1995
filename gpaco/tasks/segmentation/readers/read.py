"""From a folder to scenes: the layout is found by looking at it, and the choice is printed."""

from collections.abc import Callable
from pathlib import Path

from gpaco.errors import UserError
from gpaco.system.progress import Progress
from gpaco.tasks.segmentation.readers.benchmarks import (
    read_ade20k,
    read_camvid,
    read_cityscapes,
    read_coco_stuff,
    read_pascal,
)
from gpaco.tasks.segmentation.readers.folders import TABLES, read_classes, read_pairs
from gpaco.tasks.segmentation.scenes import OWN, Decode, Scenes, SceneSplits, numbered

Reader = Callable[[Path], SceneSplits | None]
# The first that knows the layout reads it; anyone's own folders come last.
BENCHMARKS: tuple[Reader, ...] = (read_cityscapes, read_camvid, read_ade20k, read_coco_stuff, read_pascal)


def read_scenes(path: Path | str, progress: Progress | None = None) -> SceneSplits:
    """The scenes in a folder, whatever layout it has of those we know.

    `progress` is told of masks that are looked at where nothing else says how many classes there are.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}", "segmentation data is a folder of pictures and masks")
    for reader in BENCHMARKS:
        if (splits := reader(folder)) is not None:
            return with_own_classes(splits, folder)
    if (splits := read_pairs(folder, progress)) is not None:
        return splits
    raise UserError(
        f"{folder} has no layout of pictures and masks that we know",
        "make two folders in it, images and masks, with files of the same names",
    )


def with_own_classes(splits: SceneSplits, folder: Path) -> SceneSplits:
    """Somebody's data in the folders of a benchmark: a table of classes beside them counts, numbers start at 0."""
    table = next((folder / name for name in TABLES if (folder / name).is_file()), None)
    if table is None:
        return splits
    classes, colors = read_classes(table)
    decode = Decode(colors=colors) if colors else numbered(len(classes))

    def own(part: Scenes) -> Scenes:
        return Scenes(part.images, part.masks, classes, decode, colors, part.names)

    parts = {name: own(part) for name, part in splits.parts()}
    reader = f"{OWN} in the layout of {splits.reader.partition(',')[0]}"
    return SceneSplits(parts["train"], parts.get("val"), parts.get("test"), reader, (f"classes from {table.name}",))
