"""The contents of a tar archive: images by name, and their classes. Needs no torch."""

import json
import posixpath
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from gpaco.data.images import SUFFIXES
from gpaco.data.members import Member
from gpaco.data.samples import SPLIT_WORDS
from gpaco.data.walk import entries
from gpaco.errors import UserError

_LABELS = (".txt", ".json", ".cls")  # suffixes of files with a class, in increasing precedence
_MOST_LINKS = 8  # longest chain of links that is followed
_KEYS = ("label", "cls", "class")  # of a JSON file


def shards_at(path: Path) -> list[Path]:
    """Return the shards at a path: one archive, those in a folder, or those in its folders train, val and test."""
    if not path.is_dir():
        return [path] if path.suffix.lower() == ".tar" and path.is_file() else []
    inside = entries(path)
    if folders := [one for one in inside if one.is_dir()]:
        splits = all(one.name.lower() in SPLIT_WORDS for one in folders)
        inside = [file for one in folders for file in entries(one.path)] if splits else folders
    if any(one.is_dir() for one in inside):
        return []
    return sorted(Path(file.path) for file in inside if file.name.lower().endswith(".tar"))


def images_in(shard: Path) -> list[Member]:
    """Return the images of an archive by name, labeled or not."""
    modified = shard.stat().st_mtime_ns
    return [Member(shard, name, offset, size, modified) for name, (offset, size) in sorted(scan(shard)[0].items())]


def scan(shard: Path) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """Return offset and size of each image by name, and the class of each sample by its key."""
    images: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}  # images that are links to others
    labels: dict[str, dict[str, str]] = {suffix: {} for suffix in _LABELS}
    try:
        with tarfile.open(shard, "r:") as archive:
            for one in archive:
                name, suffix = one.name.removeprefix("./"), PurePosixPath(one.name).suffix.lower()
                if PurePosixPath(name).name.startswith("."):
                    continue
                if (one.islnk() or one.issym()) and suffix in SUFFIXES:
                    start = "" if one.islnk() else posixpath.dirname(name)  # hard links are named from the top
                    links[name] = posixpath.normpath(posixpath.join(start, one.linkname))
                if not one.isreg():
                    continue
                if suffix in SUFFIXES:
                    images[name] = one.offset_data, one.size
                elif suffix in _LABELS:
                    file = archive.extractfile(one)
                    text = _text(file.read(), f"{shard}/{name}") if file else ""
                    label = _json_label(text) if suffix == ".json" else text.strip()
                    if label and labels[suffix].setdefault(sample_key(name), label) != label:
                        raise UserError(
                            f"{shard} has two classes for the sample {sample_key(name)!r}: one is in {name!r}",
                            "a sample is named up to the first dot: use other names, without dots",
                        )
            _check_end(shard, archive.offset)
    except tarfile.TarError as error:
        raise UserError(
            f"{shard} is not a tar archive, or damaged: {error}",
            "shards are not compressed; make them again, for example with tar --create",
        ) from error
    for name, target in links.items():
        for _ in range(_MOST_LINKS):
            target = links.get(target, target)
        if target not in images:
            raise UserError(
                f"{shard}: {name!r} is a link to {target!r}, which is not in the archive",
                "make it again with copies of the images instead of links",
            )
        images[name] = images[target]
    return images, labels[".txt"] | labels[".json"] | labels[".cls"]


def _check_end(shard: Path, offset: int) -> None:
    """Raise an error if the archive does not end after the last file: tarfile takes a damaged header for the end."""
    with shard.open("rb") as file:
        file.seek(offset)
        if any(file.read(tarfile.BLOCKSIZE)):
            raise tarfile.ReadError(f"no file begins at byte {offset:,}")


def sample_key(name: str) -> str:
    """Return the name of a sample: the path of its files up to the first dot of the file name."""
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.split('.')[0]}"


def _text(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"the text of {name} is not UTF-8", "save it as UTF-8, or leave it out") from None


def _json_label(text: str) -> str:
    try:
        facts: Any = json.loads(text)
    except ValueError:
        return ""
    return next((str(facts[key]) for key in _KEYS if facts.get(key) is not None), "") if isinstance(facts, dict) else ""
