"""Read from run folders by both pages: short names for the runs, and robustness.json."""

import json
from collections.abc import Sequence
from pathlib import Path

from gpaco.errors import UserError
from gpaco.pages.render import Facts
from gpaco.training.run import Run


def short_names(runs: Sequence[Run]) -> list[str]:
    """Return the parts of the run folders that differ; for a single run, the last part."""
    parts = [run.folder.resolve().parts for run in runs]
    start = _common(parts)
    end = _common([one[start:][::-1] for one in parts])
    names = ["/".join(one[start : len(one) - end]) for one in parts]
    if len(runs) == 1 or not all(names):
        names = [one[-1] for one in parts]
    return [f"{name} ({k})" if names.count(name) > 1 else name for k, name in enumerate(names, 1)]


def _common(parts: Sequence[Sequence[str]]) -> int:
    """Return the number of leading parts that all rows have in common."""
    return next((k for k, words in enumerate(zip(*parts, strict=False)) if len(set(words)) > 1), min(map(len, parts)))


def read_robustness(folder: Path) -> Facts | None:
    """Return the content of robustness.json, or None without a file."""
    path = folder / "robustness.json"
    if not path.is_file():
        return None
    try:
        found: Facts = json.loads(path.read_bytes())
    except ValueError:
        found = {}
    if found.get("version") != 1:
        raise UserError(f"{path} is damaged, or of another version", "rerun gpaco robustness to write it again")
    return found
