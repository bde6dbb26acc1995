"""Checks that all processes have the same data: each reads its own, perhaps from its own disk."""

from typing import Any

from gpaco.data.samples import DataSplits, hash_of_rows
from gpaco.errors import UserError
from gpaco.system import distributed


def check_same_everywhere(splits: DataSplits[Any]) -> None:
    """Raise the same error in all processes if classes, counts or files of one differ from those of process 0."""
    if distributed.world_size() == 1:
        return
    own = {"classes": [len(splits.classes), hash_of_rows((name, "") for name in splits.classes)]}
    own |= {name: [len(part), part.list_hash] for name, part in splits.parts()}
    first, *others = distributed.gather_json(own)
    for rank, other in enumerate(others, 1):
        for name in sorted(first.keys() | other.keys(), key=lambda name: name != "classes"):
            here, there = first.get(name, [0, ""]), other.get(name, [0, ""])
            if here != there:
                what = "classes" if name == "classes" else f"{name} images"
                but = f"{there[0]:,} {what}, process 0 has {here[0]:,}" if here[0] != there[0] else f"different {what}"
                raise UserError(
                    f"process {rank} has different data than process 0: {but}",
                    "give every machine a complete copy of the data, with the same names",
                )
