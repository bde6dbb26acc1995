"""Published lists with their image counts and hashes, to check whether data is exactly that of a paper.

Lists have the SHA-1 of Git (`git hash-object FILE`) in the repository that publishes them,
facebookresearch/classifier-balancing at 22370c6.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple


class Published(NamedTuple):
    """The number of images in a file, and its hash."""

    images: int
    hash: str


PUBLISHED = {
    "ImageNet_LT_train.txt": Published(115_846, "a063f095fcd475db4cf8b0658c4b73955535bbf9"),
    "ImageNet_LT_val.txt": Published(20_000, "3ed3188b2f44829ce2dec1cc27040d8d40984088"),
    "ImageNet_LT_test.txt": Published(50_000, "76a2fb9749d6cd29e765cc4f8c270f2504131e2f"),
    "Places_LT_train.txt": Published(62_500, "6392252f8ae867bc8a5e841cc1b29e5b8ef4b636"),
    "Places_LT_val.txt": Published(7_300, "b93a2ca58ccb7f3b671c176f395a70bf52c95533"),
    "Places_LT_test.txt": Published(36_500, "e732e58b8aa718a2c1c11933375f5710652c2b93"),
    "iNaturalist18_train.txt": Published(437_513, "4accdb7584d2f0a5106c40a33ed6afa392189bcc"),
    "iNaturalist18_val.txt": Published(24_426, "4c23900857fd0f5adcd4cc0dffef345039eeb05f"),
}


def compared_with_published(path: Path) -> list[str]:
    """Return a line about each published file at this path or beside it; no lines for unknown names."""
    if not path.is_file():
        return []
    known = [path.with_name(name) for name in PUBLISHED if path.name in PUBLISHED and _kind(name) == _kind(path.name)]
    lines = []
    for file in known:
        if file.is_file():
            same = _hash(file) == PUBLISHED[file.name].hash
            lines.append(f"{file.name}: {'the published file' if same else 'differs from the published file'}")
    return lines


def _kind(name: str) -> str:
    """Return the part of a name that the lists of a data set share.

    >>> _kind("Places_LT_train.txt")
    'Places_LT'
    """
    return name.rpartition("_")[0]


def _hash(file: Path) -> str:
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
