"""robustness.json, as `gpaco robustness` writes it into a run folder."""

import json
from pathlib import Path
from typing import Any

from gpaco.metrics.groups import GROUPS

KEYS = {"all": "error", **{name: name for name in GROUPS}}  # what the page calls it: what the file calls it


def read_robustness(folder: Path) -> dict[str, Any] | str | None:
    """Return what the file says, or what is wrong with it; None if there is none."""
    try:
        found = json.loads((folder / "robustness.json").read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return f"it cannot be read ({error})"
    if not isinstance(found, dict) or found.get("version") != 1:
        return "it is not of version 1"
    return found


def figures(found: dict[str, Any], group: str) -> dict[str, Any]:
    """Return clean error, mean error, mce and relative_mce of a group, or of all images."""
    home = found if group == "all" else found["groups"][group]
    return {key: home[key] for key in ("clean_error", "mean_error", "mce", "relative_mce")}
