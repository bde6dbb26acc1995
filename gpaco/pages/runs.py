"""Read from run folders by both pages: short names for the runs, and robustness.json."""

import json
from collections.abc import Sequence
from pathlib import Path

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


def read_robustness(folder: Path) -> Facts | str | None:
    """Return the content of robustness.json, or what is wrong with the file, or None without a file."""
    try:
        found = json.loads((folder / "robustness.json").read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return f"it cannot be read ({error})"
    if not isinstance(found, dict) or found.get("version") != 1:
        return "it is not version 1 of the format"
    return found
