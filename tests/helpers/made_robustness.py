"""robustness.json of a made-up run, from errors that a test chooses."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpaco.data.corruption.corruptions import KINDS, SEVERITIES
from gpaco.data.corruption.published import CLEAN
from gpaco.data.holdout import stratified_subset
from gpaco.metrics.corruption import Errors, summary
from gpaco.metrics.groups import GROUPS
from gpaco.pages.classification.evidence import gather
from gpaco.tasks.classification.class_match import Match
from gpaco.training.run import Run

COMMON = tuple(name for kind in ("noise", "blur", "weather", "digital") for name in KINDS[kind])

Error = Callable[[str, str, int], float]  # group ("error" is all), corruption, severity (0 is clean)


def growing(group: str, name: str, severity: int) -> float:
    """Errors that all differ: by group, corruption and severity."""
    start = {"error": 0.20, "many": 0.10, "medium": 0.21, "few": 0.42}[group]
    if not severity:
        return start
    return start + (0.02 + 0.0213 * (COMMON.index(name) % 5)) * severity


def write_robustness(
    run: Run,
    error: Error = growing,
    *,
    names: Sequence[str] = COMMON,
    severities: Sequence[int] = SEVERITIES,
    subset: int | None = None,
    baseline: tuple[str, Error] | None = None,
    notes: Sequence[str] = (),
    **others: Any,
) -> dict[str, Any]:
    """Write what `gpaco robustness` would write for these errors, and return it."""
    one = gather([run])[0]
    there = np.isin(np.arange(len(one.classes)), one.labels)
    cuts = one.metrics["cuts"]
    sizes = {name: int((there & (one.groups == name)).sum()) for name in GROUPS}
    conditions = [CLEAN, *((name, severity) for name in names for severity in severities)]

    def measured(some: Error, name: str = "") -> Errors:
        def cell(group: str, what: str, severity: int) -> float | None:
            return some(group, what, severity) if group == "error" or (there & (one.groups == group)).any() else None

        rows = {(what, s): {key: cell(key, what, s) for key in ("error", *GROUPS)} for what, s in conditions}
        return Errors(rows, [], name)

    other = baseline and measured(baseline[1], baseline[0])
    found = Match(one.labels, there, (), ())
    result = summary(measured(error), other, sizes, cuts, conditions, list(notes))
    chosen = np.arange(len(one.labels)) if subset is None else stratified_subset(one.labels, subset, 0)
    result |= {
        "run": str(run.folder),
        "data": "gone",
        "set": "corrupted here",
        "n": len(chosen),
        "subset": subset,
        "seed": 0,
        "constants": "cifar",
        "preprocessing": "official",
        "overlap": found.facts(False),
        "prior": None,
        "unbiased": False,
    } | others
    (run.folder / "robustness.json").write_text(json.dumps(result, indent=1))
    return result
