"""`read`: finds the right reader for a path."""

import os
from pathlib import Path

from gpaco.data.archives import shards_at
from gpaco.data.images import SUFFIXES
from gpaco.data.readers.cifar import cifar_folder, is_cifar, read_cifar
from gpaco.data.readers.digits import read_digits
from gpaco.data.readers.folder import read_folder
from gpaco.data.readers.idx import idx_folder, read_idx
from gpaco.data.readers.lists import read_list
from gpaco.data.readers.rows import LISTS, TABLES
from gpaco.data.readers.shards import read_shards
from gpaco.data.readers.table import read_table
from gpaco.data.samples import Splits, with_training_images
from gpaco.errors import EnvironmentProblem, UserError, nearest

_ARCHIVES = (".tar.gz", ".tgz", ".tar")

SUPPORTED = (
    "give a folder of class folders; a folder with train, val and test; a .csv, .tsv or .parquet table of "
    "path,label[,split]; a .txt list of 'path label' lines; tar shards, one or a folder of them; CIFAR-10/100, "
    "folder or .tar.gz; idx files; the word digits"
)


def read(
    path: Path | str,
    *,
    root: Path | str | None = None,
    allow_empty_classes: bool = False,
    allow_outside: bool = False,
    needs_training: bool = True,
    index: Path | None = None,
) -> Splits:
    """Read the data set at a path, or scikit-learn's digits for the word `digits` (for a folder, give `./digits`).

    Args:
        path: a folder or file, as described in `SUPPORTED`.
        root: folder that the paths in a table or list are relative to; by default its own folder.
        allow_empty_classes: keep classes without a training image instead of refusing them.
        allow_outside: let tables and lists name absolute paths and `..`.
        needs_training: refuse data without training images.
        index: file that stores the index of tar shards; without it, they are scanned every time.
    """
    if path == "digits":  # not Path("digits"), which may have been ./digits
        return read_digits()
    place = Path(os.path.expanduser(path)).absolute()
    start = None if root is None else Path(os.path.expanduser(root)).absolute()
    if start is not None and not start.is_dir():
        raise UserError(f"the root {str(start)!r} is not a folder", "give the folder that the paths are relative to")
    try:
        if not place.exists():
            raise _absent(place)
        if start and not (place.is_file() and place.name.lower().endswith((*TABLES, *LISTS))):
            raise UserError("--root is for tables and lists of images", "leave out --root")
        splits = _read(place, start or place.parent, allow_outside, index)
    except PermissionError as error:
        raise UserError(f"no permission to read {str(error.filename or place)!r}", "change its permissions") from None
    except FileNotFoundError as error:
        raise UserError(
            f"{str(error.filename or place)!r} disappeared while it was read", "check that nothing moves or deletes it"
        ) from None
    except OSError as error:
        raise EnvironmentProblem(f"cannot read {str(place)!r}: {error.strerror or error}", "check the disk") from error
    return with_training_images(splits, allow_empty_classes) if needs_training else splits


def _read(path: Path, root: Path, allow_outside: bool, index: Path | None) -> Splits:
    folder, name = path.is_dir(), path.name.lower()
    if folder and (path / "recipe.toml").is_file():
        raise UserError(f"{str(path)!r} is a run, not data: it has a recipe.toml", "give a folder or file of images")
    if folder and (cifar := cifar_folder(path)):
        return read_cifar(cifar)
    if not folder and name.endswith(TABLES):
        return read_table(path, root, allow_outside)
    if not folder and name.endswith(LISTS):
        return read_list(path, root, allow_outside)
    if not folder and name.endswith(_ARCHIVES) and (not name.endswith(".tar") or is_cifar(path)):
        return read_cifar(path)
    if idx := idx_folder(path):
        return read_idx(idx)
    if shards := shards_at(path):
        return read_shards(shards, index)
    if folder:
        return read_folder(path)
    if path.suffix.lower() in SUFFIXES:
        raise UserError(f"{str(path)!r} is one image, not a data set", SUPPORTED)
    raise UserError(f"cannot tell what kind of data {str(path)!r} is", SUPPORTED)


def _absent(path: Path) -> UserError:
    try:
        beside = os.listdir(path.parent)
    except OSError:
        return UserError(f"{str(path)!r} does not exist, nor does its folder", "check the spelling of the path")
    return UserError(f"{str(path)!r} does not exist{nearest(path.name, [*beside, 'digits'])}", SUPPORTED)
