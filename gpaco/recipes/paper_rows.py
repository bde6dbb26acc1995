"""The recipes of the package: rows of the paper's tables, in one TOML file per data set (gpaco/recipes/files).

A file starts with what its rows share: `data` (the argument of `gpaco train`), `processes` and `hardware`. Each
`[recipe.NAME]` is a row. It has a `source` (table, row and number of the paper) and lists its changes to `base`, a
complete `[base.NAME]` in the same file; of [method], only settings that its methods use are kept. Values are those of
the released code; where the paper's text differs, its values are under `paper.*`. `assumed` lists settings that neither
gives. A `note` is appended to that of the base.

A row with `sweep = "section.key"` stands for several rows, one for each pair of value and number in `rows`; `{}` in its
name and row is replaced by the value.
"""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from gpaco.errors import UserError, nearest
from gpaco.recipes.settings import MethodSettings, Train, used

_FOLDER = Path(__file__).parent / "files"

Table = dict[str, Any]

# Defaults of `gpaco train` to undo: the paper trains all layers from random weights, and adds no closed form.
_AS_PUBLISHED: dict[str, Table] = {
    "classification": {"model": {"weights": "none"}, "train": {"part": "all"}, "method": {"fuse": False}},
    "segmentation": {"model": {"weights": "none"}},
}


def names() -> list[str]:
    """Return the names of the packaged recipes."""
    return sorted(_rows())


def differs(name: str) -> bool:
    """Return whether the values in the paper's text differ from the released code."""
    return "paper" in _rows()[name][0]


def tables(name: str, *, paper: bool = False) -> Table:
    """Return the settings of a row by section and key, with its source; `paper` selects the paper's text."""
    if name not in _rows():
        raise UserError(f"there is no recipe {name!r}{nearest(name, names())}", "`gpaco recipes` lists all of them")
    if paper and not differs(name):
        raise UserError(f"the paper's text has no different values for {name}", "leave out --paper")
    row, file = _rows()[name]
    text = row.get("paper", {}) if paper else {}
    row = _joined({key: value for key, value in row.items() if key != "paper"}, text)
    source = {key: row.pop(key) for key in ("note", "assumed") if key in row}
    command = _command(f"{name} --paper" if paper else name, row, file)
    row["source"] = row["source"] | source | {"command": command, "hardware": file["hardware"]}
    row = _joined(_AS_PUBLISHED[row.get("train", {}).get("task", Train.task)], row)
    every = [row["method"] | stage.get("method", {}) for stage in row.get("stage", [{}])]
    known = {key for one in every for key in used(one.get("name", MethodSettings.name), one.get("first", ""))}
    row["method"] = {key: value for key, value in row["method"].items() if key in known}
    return row


def _command(words: str, row: Table, file: Table) -> str:
    """Return the command that trains a row, with one process per group that shares batch-norm statistics."""
    model, groups = row["model"], file["processes"]
    if ghost := model.get("ghost_batch", 0):
        groups = row.get("train", {}).get("batch_size", Train.batch_size) // ghost
    start = f"torchrun --nproc_per_node {groups} -m gpaco" if groups > 1 else "gpaco"
    weights = f" --weights {model['weights']}" if "weights" in model else ""
    return f"{start} train {file['data']}{weights} --recipe {words} --out RUN"


def processes_of(command: str) -> int:
    """Return the number of processes that the command of a recipe starts.

    >>> processes_of("torchrun --nproc_per_node 4 -m gpaco train DATA"), processes_of("gpaco train DATA")
    (4, 1)
    """
    found = re.search(r"--nproc_per_node (\d+)", command)
    return int(found[1]) if found else 1


@cache
def _rows() -> dict[str, tuple[Table, Table]]:
    """Return every row, merged with its base, and its file."""
    found: dict[str, tuple[Table, Table]] = {}
    for path in _FOLDER.glob("*.toml"):
        file = tomllib.loads(path.read_text(encoding="utf-8"))
        for pattern, own in file["recipe"].items():
            base = file["base"][own.pop("base")] if "base" in own else {}
            if "note" in base and "note" in own:
                own["note"] = f"{base['note']} {own['note']}"
            found |= {name: (row, file) for name, row in _swept(pattern, _joined(base, own))}
    return found


def _swept(pattern: str, row: Table) -> Iterator[tuple[str, Table]]:
    """Yield the row under its name, or one row for each value of its sweep."""
    if "sweep" not in row:
        yield pattern, row
        return
    section, key = row.pop("sweep").split(".")
    for value, number in row.pop("rows"):
        source = {"row": row["source"]["row"].format(value), "paper": number}
        yield pattern.format(value), _joined(row, {section: {key: value}, "source": source})


def _joined(base: Table, own: Table) -> Table:
    """Merge two tables recursively; values of `own` win."""
    both = {key: _joined(base[key], own[key]) for key in base.keys() & own.keys() if isinstance(own[key], dict)}
    return base | own | both
