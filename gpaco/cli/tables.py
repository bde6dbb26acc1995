"""Results as tables for a terminal."""

from typing import Any

from gpaco.data.corruption.corruptions import SEVERITIES
from gpaco.metrics.groups import GROUPS


def robustness_table(result: dict[str, Any]) -> str:
    """Return the errors that `robustness` found, in percent."""
    if "corruptions" not in result:
        lines = [f"{result['set']}: error {_percent(result['error']).strip()}%"]
        lines += [f"  {name:<8} {_percent(result['groups'][name]['error'])}" for name in GROUPS]
        return "\n".join(lines + _remarks(result))
    measure = f"{result.get('measure', 'error')} in %"
    head = f"{measure:<19}" + "".join(f"{s:>6}" for s in SEVERITIES) + "    mean" + "".join(f"{g:>8}" for g in GROUPS)
    clean = [result["clean_error"], *(result["groups"][name]["clean_error"] for name in GROUPS)]
    lines = [head, f"{'clean':<19}{'':30}" + "".join(f"{_percent(value):>8}" for value in clean), ""]
    for name, row in result["corruptions"].items():
        tested = [row[str(s)] for s in SEVERITIES]
        cells = "".join(f"{_percent(cell['error']) if cell else '-':>6}" for cell in tested)
        lines.append(f"{name:<19}{cells}" + "".join(f"{_percent(row['mean'][key]):>8}" for key in ("error", *GROUPS)))
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
