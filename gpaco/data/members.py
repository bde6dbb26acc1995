"""A file inside a tar archive, found by its offset."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Member:
    """One file of an uncompressed archive, as a range of the archive's bytes."""

    archive: Path
    name: str  # in the archive
    offset: int
    size: int
    modified: int  # modification time of the archive when it was indexed, in nanoseconds

    def __str__(self) -> str:
        return f"{self.archive}/{self.name}"

    def read_bytes(self) -> bytes:
        with self.archive.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


File = Path | Member
