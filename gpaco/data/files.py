"""Finds image files in files, folders, archives and lists."""

from collections.abc import Sequence
from pathlib import Path

from gpaco.data.archives import images_in, shards_at
from gpaco.data.images import SUFFIXES
from gpaco.data.members import File, Member
from gpaco.data.readers.rows import LISTS, TABLES, read_text, there
from gpaco.data.walk import images_below
from gpaco.errors import UserError, nearest

ACCEPTED = "give images, folders of images, tar shards, or .txt lists with one path per line"


def find_files(paths: Sequence[Path | str], out: Path | str | None = None) -> list[File]:
    """Return the images that the paths name, in order, sorted within a folder. A listed file need not exist.

    Hidden files in folders are left out, and so are earlier results: everything in the folder `out`.
    """
    files: list[File] = []
    for path in map(Path, paths):
        shards = shards_at(path)
        files += [image for shard in shards for image in images_in(shard)]
        if path.is_dir():
            files += images_below(path)
        elif shards:
            continue
        elif str(path).startswith(("http:/", "https:/")):
            raise UserError(f"{str(path)!r} is not a file: gpaco does not download images", "download it first")
        elif not path.exists():
            beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
            raise UserError(f"{str(path)!r} does not exist{nearest(path.name, beside)}", ACCEPTED)
        elif path.suffix.lower() in TABLES:
            raise UserError(f"{str(path)!r} is a table, not an image", ACCEPTED)
        elif path.suffix.lower() == ".onnx":
            raise UserError(f"{str(path)!r} is a model, not an image", "give one exported file, then images")
        elif path.suffix.lower() in LISTS:
            text, _ = read_text(path)
            files += [_listed(path.parent, line.strip()) for line in text.splitlines() if line.strip()]
        else:
            files.append(path)
    if out is not None:
        results = Path(out).resolve()
        files = [file for file in files if isinstance(file, Member) or not file.resolve().is_relative_to(results)]
    if not files:
        raise UserError(f"there is no image in {', '.join(map(str, paths))}", ACCEPTED)
    return files


def _listed(folder: Path, line: str) -> Path:
    """Return the image that a line of a list names, without the class number that follows it in training lists."""
    name, *label = line.rsplit(None, 1)
    numbered = bool(label) and label[0].isdigit() and Path(line).suffix.lower() not in SUFFIXES
    names = [line, name] if numbered else [line]
    for one in (*names, *(name.replace("\\", "/") for name in names)):  # written on Windows
        if found := there(folder, one):
            return Path(found)
    return folder / names[-1]
