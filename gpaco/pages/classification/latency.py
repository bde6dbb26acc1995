"""Accuracy against latency, from the latency.json that `gpaco latency` and `gpaco compare` write to a run."""

import math
from collections.abc import Sequence

from gpaco.pages.classification.evidence import Evidence
from gpaco.pages.render import Facts
from gpaco.tasks.cost import format_device, read_measured

_LEFT, _RIGHT, _TOP, _BASE = 44, 688, 26, 260  # edges of the plot, in pixels


def latency(found: Sequence[Evidence]) -> Facts | None:
    """Return the plot of accuracy against milliseconds per image; None unless runs differ in them."""
    rows = list(filter(None, (_row(k, one) for k, one in enumerate(found))))
    times, scores = [row["ms"] for row in rows], [row["top1"] for row in rows]
    if len(set(times)) < 2:  # most comparisons train one network with several methods
        return None
    low, high = math.log(min(times) / 1.5), math.log(max(times) * 1.5)
    step = next(step for step in (1, 2, 5, 10, 20, 25) if 100 * (max(scores) - min(scores)) <= 3 * step or step == 25)
    first, last = math.floor(100 * min(scores) / step) - 1, math.floor(100 * max(scores) / step) + 1
    first, last = max(first, 0), min(last, 100 // step)

    def across(ms: float) -> float:
        return _LEFT + (math.log(ms) - low) / (high - low) * (_RIGHT - _LEFT)

    def down(score: float) -> float:
        return float(_BASE - (100 * score / step - first) / (last - first) * (_BASE - _TOP))

    for row in rows:
        row["x"], row["y"] = across(row["ms"]), down(row["top1"])
    placed: list[Facts] = []
    for row in sorted(rows, key=lambda row: float(row["y"])):
        row["text_y"] = row["y"] - 8
        for other in placed:
            if abs(other["x"] - row["x"]) < 160 and row["text_y"] - other["text_y"] < 15:
                row["text_y"] = other["text_y"] + 15  # names do not overlap
        placed.append(row)
    round_times = [digit * 10.0**power for power in range(-4, 6) for digit in (1, 2, 5)]
    return {
        "rows": rows,
        "edges": {"left": _LEFT, "right": _RIGHT, "base": _BASE},
        "grid": [{"y": down(k * step / 100), "text": f"{k * step}%"} for k in range(first, last + 1)],
        "ticks": [{"x": across(ms), "text": f"{ms:g} ms"} for ms in round_times if low <= math.log(ms) <= high],
    }


def _row(number: int, one: Evidence) -> Facts | None:
    measured = read_measured(one.run.folder)
    if measured is None or (time := measured["batches"]["64"]) is None:
        return None
    known = {"device": format_device(measured), "parameters": measured["parameters"], "flops": measured["flops"]}
    times = {
        "ms": time["median"],
        "low": time["low"],
        "high": time["high"],
        "alone": measured["batches"]["1"]["median"],
    }
    return {"number": number, "name": one.name, "top1": one.metrics["top1"], **times, **known}
