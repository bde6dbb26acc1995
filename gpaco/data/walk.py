"""Lists what is in a folder, at any depth. Hidden files and folders are left out, and links are followed."""

import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from gpaco.data.images import SUFFIXES
from gpaco.data.members import File
from gpaco.errors import EnvironmentProblem, UserError

ADDED = ("__MACOSX", "@eaDir")  # to archives by macOS, to folders by Synology


def entries(path: str | Path) -> list["os.DirEntry[str]"]:
    """Return the files and folders in a folder, without hidden ones and those that macOS and Synology add."""
    try:
        with os.scandir(path) as found:
            return [entry for entry in found if not entry.name.startswith(".") and entry.name not in ADDED]
    except PermissionError:
        raise UserError(f"no permission to read the folder {str(path)!r}", "change its permissions") from None
    except OSError as error:
        raise EnvironmentProblem(f"cannot read folder {str(path)!r}: {error.strerror}", "check the disk") from error


def files_below(folder: str | Path) -> Iterator[str]:
    """Yield the files at any depth, dangling links included. Each folder is visited once, however many links it has."""
    waiting, seen = [str(folder)], set()
    while waiting:
        current = waiting.pop()
        place = os.stat(current)
        if (place.st_dev, place.st_ino) in seen:
            continue
        seen.add((place.st_dev, place.st_ino))
        inside = entries(current)
        yield from (entry.path for entry in inside if not entry.is_dir())
        waiting += sorted((entry.path for entry in inside if entry.is_dir()), reverse=True)


def real_paths(files: Iterable[str | File]) -> list[str]:
    """Return the files without links. Each folder is resolved once: resolving every file of ImageNet takes a minute."""
    real = cache(os.path.realpath)
    split = (os.path.split(str(file)) for file in files)
    places = (os.path.join(real(folder), name) for folder, name in split)
    return [os.path.realpath(place) if os.path.islink(place) else place for place in places]


def is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES


def images_below(folder: Path) -> list[Path]:
    """Return the images at any depth, sorted."""
    return sorted(Path(file) for file in files_below(folder) if is_image(file))
