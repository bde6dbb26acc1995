"""From a folder to scenes: the layout is found by looking at it, and the choice is printed."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpaco.errors import UserError
from gpaco.segmentation.datasets import read_ade20k, read_camvid, read_cityscapes, read_coco_stuff, read_pascal
from gpaco.segmentation.folders import Progress, read_pairs
from gpaco.segmentation.scenes import SceneSplits

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
    readers: tuple[Reader, ...] = (*BENCHMARKS, partial(read_pairs, progress=progress))
    for reader in readers:
        splits = reader(folder)
        if splits is not None:
            return splits
    raise UserError(
        f"{folder} has no layout of pictures and masks that we know",
        "make two folders in it, images and masks, with files of the same names",
    )
