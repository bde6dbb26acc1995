"""From a folder to scenes: the layout is found by looking at it, and the choice is printed."""

from collections.abc import Callable
from pathlib import Path

from gpaco.errors import UserError
from gpaco.segmentation.datasets import read_ade20k, read_camvid, read_cityscapes, read_coco_stuff, read_pascal
from gpaco.segmentation.folders import read_pairs
from gpaco.segmentation.scenes import SceneSplits

Reader = Callable[[Path], SceneSplits | None]
READERS: tuple[Reader, ...] = (  # the first that knows the layout reads it
    read_cityscapes,
    read_camvid,
    read_ade20k,
    read_coco_stuff,
    read_pascal,
    read_pairs,
)


def read_scenes(path: Path | str) -> SceneSplits:
    """The scenes in a folder, whatever layout it has of those we know."""
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}", "segmentation data is a folder of pictures and masks")
    for reader in READERS:
        splits = reader(folder)
        if splits is not None:
            return splits
    raise UserError(
        f"{folder} has no layout of pictures and masks that we know",
        "make two folders in it, images and masks, with files of the same names",
    )
