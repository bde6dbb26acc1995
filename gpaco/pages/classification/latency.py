"""Accuracy against latency, from the latency.json that `gpaco latency` and `gpaco compare` leave in a run."""

import math
from collections.abc import Sequence

from gpaco.pages.classification.evidence import Evidence
from gpaco.pages.render import Facts
from gpaco.tasks.cost import in_words, read_measured

_LEFT, _RIGHT, _TOP, _BASE = 44, 688, 26, 260  # edges of the plot, in pixels


def latency(found: Sequence[Evidence]) -> Facts | None:
    """Return the plot of accuracy against milliseconds per image; None without two runs that were measured."""
    rows = list(filter(None, (_row(k, one) for k, one in enumerate(found))))
    if len(rows) < 2:
        return None
    times, scores = [row["ms"] for row in rows], [row["top1"] for row in rows]
    low, high = math.log(min(times) / 1.5), math.log(max(times) * 1.5)
    bottom, top = max(min(scores) - 0.05, 0), min(max(scores) + 0.05, 1)
    for row in rows:
        row["x"] = _LEFT + (math.log(row["ms"]) - low) / (high - low) * (_RIGHT - _LEFT)
        row["y"] = _BASE - (row["top1"] - bottom) / (top - bottom) * (_BASE - _TOP)
    lines = [bottom + (top - bottom) * k / 4 for k in range(5)]
    ends = [(_LEFT, "start", math.exp(low)), (_RIGHT, "end", math.exp(high))]
    return {
        "rows": rows,
        "edges": {"left": _LEFT, "right": _RIGHT, "base": _BASE},
        "grid": [{"y": _BASE - (_BASE - _TOP) * k / 4, "value": value} for k, value in enumerate(lines)],
        "ticks": [{"x": x, "anchor": anchor, "text": f"{value:.3g} ms"} for x, anchor, value in ends],
    }


def _row(number: int, one: Evidence) -> Facts | None:
    measured = read_measured(one.run.folder)
    if measured is None or (time := measured["batches"]["64"]) is None:
        return None
    known = {"device": in_words(measured), "parameters": measured["parameters"], "flops": measured["flops"]}
    times = {
        "ms": time["median"],
        "low": time["low"],
        "high": time["high"],
        "alone": measured["batches"]["1"]["median"],
    }
    return {"number": number, "name": one.name, "top1": one.metrics["top1"], **times, **known}
