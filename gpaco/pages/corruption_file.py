"""What `gpaco robustness` wrote about a run, read again and checked: a number that cannot be right is never shown."""

import json
import math
from pathlib import Path
from typing import Any

from gpaco.corruption import COMMON, CONSTANTS, EXTRA, SEVERITIES
from gpaco.corruption_metrics import mce, mean_error, relative_mce, severity_mean
from gpaco.errors import nearest
from gpaco.metrics import GROUPS

KEYS = {"all": "error", **{name: name for name in GROUPS}}  # what the page calls it: what the file calls it
NAME = "robustness.json"

_FIGURES = ("clean_error", "mean_error", "mce", "relative_mce")
_OTHERS: dict[str, Any] = {
    "n": int,
    "subset": int | None,
    "seed": int,
    "constants": str | None,
    "prior": str | None,
    "unbiased": bool,
    "cuts": dict,
    "notes": list,
    "skipped": list,
    "corruptions": dict,
    "extra": dict,
    "groups": dict,
}


def read_robustness(path: Path) -> dict[str, Any]:
    """The content of a robustness.json; ValueError in plain words where something is missing or does not add up."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"it cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise ValueError("it is not a table of results")
    if found.get("version") != 1:
        raise ValueError(f"its version is {found.get('version')!r}, not 1")
    for key, kind in _OTHERS.items():
        if key not in found:
            raise ValueError(f"{key} is missing")
        if not isinstance(found[key], kind) or (kind is not bool and isinstance(found[key], bool)):
            raise ValueError(f"{key} is {_short(found[key])}")
    for key in ("n", "subset"):
        if found[key] is not None and found[key] < 1:
            raise ValueError(f"{key} is {found[key]}")
    if found["constants"] not in (None, *CONSTANTS):
        raise ValueError(f"constants is {_short(found['constants'])}")
    for note in (*found["notes"], *found["skipped"]):
        if not isinstance(note, str):
            raise ValueError(f"a note is {_short(note)}")
    for group in GROUPS:
        classes = _table(found["groups"], group, "groups").get("classes")
        if not isinstance(classes, int) or isinstance(classes, bool) or classes < 0:
            raise ValueError(f"groups.{group}.classes is {_short(classes)}")
    _check_rows(found)
    _check_means(found)
    _check_baseline(found)
    return found


def figures(found: dict[str, Any], group: str) -> dict[str, Any]:
    """Clean error, mean error, mce and relative_mce of a group, or of all images."""
    home = found if group == "all" else found["groups"][group]
    return {key: home[key] for key in _FIGURES}


def rows(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The corruptions that were tried, with those that are in no mean."""
    return {**found["corruptions"], **found["extra"]}


def _check_rows(found: dict[str, Any]) -> None:
    """Every error is a rate, and a group has errors everywhere or nowhere."""
    for place, known in (("corruptions", COMMON), ("extra", EXTRA)):
        for name in found[place]:
            if name not in known:
                raise ValueError(f"{_short(name)} in {place} is not known{nearest(name, known)}")
            row = _table(found[place], name, place)
            for severity in map(str, SEVERITIES):
                if severity not in row:
                    raise ValueError(f"{place}.{name}.{severity} is missing")
                if row[severity] is not None:
                    _rates(row, severity, f"{place}.{name}", needed=True)
            _rates(row, "mean", f"{place}.{name}", needed=False)
    if not rows(found):
        raise ValueError("there is no corruption in it")
    for group in GROUPS:
        tried = [row[str(s)] for row in rows(found).values() for s in SEVERITIES if row[str(s)] is not None]
        without = {cell[group] is None for cell in tried}
        if len(without) > 1 or (found["groups"][group]["classes"] == 0 and False in without):
            raise ValueError(f"errors of the group {group} are there and not there")


def _check_means(found: dict[str, Any]) -> None:
    """Means are those of the errors."""
    for group, key in KEYS.items():
        home = found if group == "all" else found["groups"][group]
        for figure in _FIGURES:
            if figure not in home:
                raise ValueError(f"{figure} of {group} is missing")
            _number(home[figure], f"{figure} of {group}", most=1 if figure.endswith("error") else None)
        for name, row in rows(found).items():
            by_severity = {s: (row[str(s)] or {}).get(key) for s in SEVERITIES}
            _same(row["mean"][key], severity_mean(by_severity), f"the mean of {name} for {group}")
        _same(home["mean_error"], mean_error(_means(found, key)), f"mean_error of {group}")


def _check_baseline(found: dict[str, Any]) -> None:
    """mce and relative_mce are those against the baseline; a group's own cannot be computed again."""
    if "baseline" not in found:
        raise ValueError("baseline is missing")
    if found["baseline"] is None:
        if any(figures(found, group)[key] is not None for group in KEYS for key in ("mce", "relative_mce")):
            raise ValueError("it has mce without a baseline")
        return
    baseline = _table(found, "baseline", "")
    means, name = _table(baseline, "means", "baseline"), baseline.get("name")
    if not isinstance(name, str):
        raise ValueError(f"baseline.name is {_short(name)}")
    for key, value in (*means.items(), ("clean_error", baseline.get("clean_error"))):
        _number(value, f"the baseline's {_short(key)}", most=1)
    own = _means(found, "error")
    _same(found["mce"], mce(own, means), "mce")
    relative = relative_mce(own, found["clean_error"], means, baseline.get("clean_error"))
    _same(found["relative_mce"], relative, "relative_mce")


def _means(found: dict[str, Any], key: str) -> dict[str, float | None]:
    return {name: row["mean"][key] for name, row in found["corruptions"].items()}


def _table(home: dict[str, Any], key: str, place: str) -> dict[str, Any]:
    inside = f"{place}.{key}" if place else key
    if key not in home:
        raise ValueError(f"{inside} is missing")
    if not isinstance(home[key], dict):
        raise ValueError(f"{inside} is {_short(home[key])}")
    return dict(home[key])


def _rates(row: dict[str, Any], key: str, place: str, *, needed: bool) -> None:
    cell = _table(row, key, place)
    for name in KEYS.values():
        if name not in cell or (needed and name == "error" and cell[name] is None):
            raise ValueError(f"{place}.{key}.{name} is missing")
        _number(cell[name], f"{place}.{key}.{name}", most=1)


def _number(value: Any, what: str, most: float | None) -> None:
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{what} is {_short(value)}")
    if most is not None and not 0 <= value <= most:
        raise ValueError(f"{what} is {value}, which is no error from 0 to {most}")


def _same(value: float | None, computed: float | None, what: str) -> None:
    if value is None and computed is None:
        return
    if value is None or computed is None or not math.isclose(value, computed, rel_tol=1e-9, abs_tol=1e-12):
        raise ValueError(f"{what} is {value}, but the errors give {computed}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "\u2026"
