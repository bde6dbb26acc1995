"""What robustness() found, put together: by condition, by corruption, by group, with means; and as a table."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpaco.data.corruption.corruptions import CORRUPTIONS, SEVERITIES
from gpaco.data.corruption.images import CLEAN
from gpaco.data.corruption.published import Condition
from gpaco.metrics.classification import GROUPS
from gpaco.metrics.corruption import Means, mce, mean_error, relative_mce, severity_mean
from gpaco.system.files import write_atomic
from gpaco.system.progress import Say

Bar = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]

_KEYS = ("error", *GROUPS)


@dataclass(frozen=True)
class Measured:
    """Errors of a model: a row with error, many, medium and few for each condition; or only means, of AlexNet."""

    rows: dict[Condition, dict[str, Any]]
    skipped: list[str]
    name: str = ""
    by_group: bool = True
    published: Means | None = None
    published_clean: float | None = None

    @classmethod
    def of_means(cls, name: str, means: Means, clean: float) -> "Measured":
        return cls({}, [], name, False, means, clean)

    def clean(self, key: str = "error") -> float | None:
        if self.published is not None:
            return self.published_clean if key == "error" else None
        return self.rows[CLEAN][key] if CLEAN in self.rows else None

    def means(self, key: str = "error") -> dict[str, float | None]:
        """Of each corruption, over severities; None where one is missing."""
        if self.published is not None:
            return dict(self.published) if key == "error" else {}
        return {
            name: severity_mean({s: self.rows[name, s][key] for s in SEVERITIES if (name, s) in self.rows})
            for name in CORRUPTIONS
        }


def summary(
    mine: Measured,
    baseline: Measured | None,
    sizes: Mapping[str, int | None],
    cuts: Mapping[str, float],
    conditions: Sequence[Condition],
    notes: list[str],
) -> dict[str, Any]:
    """All of it, ready for JSON; `sizes` are the groups' numbers of classes (None: unknown), `cuts` what parts them."""
    result: dict[str, Any] = {"version": 1}
    if tuple(conditions) == (CLEAN,):
        result |= {"error": mine.clean()}
        result["groups"] = {name: {"classes": sizes[name], "error": mine.clean(name)} for name in GROUPS}
        return result | {"notes": notes, "skipped": mine.skipped}
    result |= _figures(mine, baseline, "error", notes)
    result["groups"] = {
        name: {
            "classes": sizes[name],
            **_figures(mine, baseline if baseline and baseline.by_group else None, name, []),
        }
        for name in GROUPS
    }
    names = [name for name in CORRUPTIONS if any(condition[0] == name for condition in conditions)]
    means = {key: mine.means(key) for key in _KEYS}
    result["corruptions"] = {
        name: {
            **{str(s): _errors(mine.rows.get((name, s))) for s in SEVERITIES},
            "mean": {key: means[key][name] for key in _KEYS},
        }
        for name in names
    }
    result["cuts"] = dict(cuts)
    result["baseline"] = None
    if baseline is not None:
        result["baseline"] = {
            "name": baseline.name,
            "clean_error": baseline.clean(),
            "mean_error": mean_error(baseline.means()),
            "means": {name: baseline.means().get(name) for name in CORRUPTIONS},
        }
    return result | {"notes": notes, "skipped": mine.skipped}


def write_result(folder: Path, stem: str, result: dict[str, Any], say: Say) -> None:
    """Write `robustness.json`, or `robustness-STEM.json` for other data than the run's own."""
    path = folder / (f"robustness-{stem}.json" if stem else "robustness.json")
    write_atomic(path, json.dumps(result, indent=1))
    say(f"written: {path}")


def missing_conditions(wanted: Sequence[Condition]) -> list[str]:
    """A note if some of the 75 conditions are not among these."""
    missing = [f"{name} {s}" for name in CORRUPTIONS for s in SEVERITIES if (name, s) not in wanted]
    if not missing:
        return []
    few = ", ".join(missing[:3])
    if len(missing) > 3:
        few += ", ..."
    return [f"{len(missing)} of the 75 conditions are missing ({few}): means over all of them are null"]


def _figures(mine: Measured, baseline: Measured | None, key: str, notes: list[str]) -> dict[str, Any]:
    clean, means = mine.clean(key), mine.means(key)
    figures: dict[str, Any] = {"clean_error": clean, "mean_error": mean_error(means), "mce": None, "relative_mce": None}
    if clean is None:
        notes.append("the clean error is not known: --clean DATA gives it, and relative_mce with it")
    if baseline is None:
        return figures
    there, there_clean = baseline.means(key), baseline.clean(key)
    figures["mce"] = mce(means, there)
    figures["relative_mce"] = relative_mce(means, clean, there, there_clean)
    if there_clean is not None:
        unhurt = [name for name in CORRUPTIONS if (other := there.get(name)) is not None and other <= there_clean]
        if unhurt and clean is not None:
            notes.append(f"relative_mce is null: {', '.join(unhurt)} does not hurt the baseline")
    if figures["mean_error"] is not None and figures["mce"] is None:
        notes.append("mce is null: the baseline makes no error, or was not measured, under some corruption")
    return figures


def _errors(row: dict[str, Any] | None) -> dict[str, float | None] | None:
    return None if row is None else {key: row[key] for key in _KEYS}


def table(result: dict[str, Any]) -> str:
    """The result in lines for a terminal, in percent."""
    if "corruptions" not in result:
        lines = [f"{result['set']}: error {_percent(result['error']).strip()} %"]
        lines += [f"  {name:<8} {_percent(result['groups'][name]['error'])}" for name in GROUPS]
        return "\n".join(lines + _remarks(result))
    head = (
        f"{'error in %':<19}" + "".join(f"{s:>6}" for s in SEVERITIES) + "    mean" + "".join(f"{g:>8}" for g in GROUPS)
    )
    clean = [result["clean_error"], *(result["groups"][name]["clean_error"] for name in GROUPS)]
    lines = [head, f"{'clean':<19}{'':30}" + "".join(f"{_percent(value):>8}" for value in clean)]
    lines.append("")
    for name, row in result["corruptions"].items():
        cells = "".join(f"{_percent(row[str(s)] and row[str(s)]['error']):>6}" for s in SEVERITIES)
        lines.append(f"{name:<19}{cells}" + "".join(f"{_percent(row['mean'][key]):>8}" for key in _KEYS))
    lines.append("")
    named = f" against {result['baseline']['name']}" if result["baseline"] else ""
    for key, title in (("mean_error", "mean error"), ("mce", f"mCE{named}"), ("relative_mce", f"relative mCE{named}")):
        values = [result[key], *(result["groups"][name][key] for name in GROUPS)]
        if key == "mean_error" or any(value is not None for value in values):
            lines.append(f"{title:<49}" + "".join(f"{_percent(value):>8}" for value in values))
    return "\n".join(lines + _remarks(result))


def _remarks(result: dict[str, Any]) -> list[str]:
    skipped = result["skipped"]
    lines = [f"note: {note}" for note in result["notes"]]
    lines += [f"skipped: {line}" for line in skipped[:10]]
    if len(skipped) > 10:
        lines.append(f"skipped: {len(skipped) - 10} more")
    return ["", *lines] if lines else []


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f}"
