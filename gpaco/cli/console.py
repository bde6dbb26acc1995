"""Errors, help and metrics as the command prints them."""

import json
import sys
from typing import Any


def print_error(cause: str, remedy: str) -> None:
    """Print an error on two lines, even if a name in it has a line break."""
    cause, remedy = ("".join(c if c.isprintable() else repr(c)[1:-1] for c in text) for text in (cause, remedy))
    print(f"error: {cause}\n  {remedy}", file=sys.stderr)


def print_usage_error(error: Any) -> None:
    """Print a usage error of click."""
    cause = " ".join(error.format_message().split()).rstrip(".")
    for kind, plain in (("integer", "whole number"), ("number", "number")):
        wordy = f"Input should be a valid {kind}, unable to parse string as a{'n' * (kind == 'integer')} {kind}"
        cause = cause.replace(wordy, f"it must be a {plain}")
    command = error.ctx.command_path if error.ctx else "gpaco"
    remedy = "write --set before each KEY=VALUE, or " if "unexpected extra argument" in cause and "=" in cause else ""
    print_error(cause[:1].lower() + cause[1:], f"{remedy}see `{command} --help`")


def print_metrics(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    from gpaco.system.words import plural

    groups = {"many": "many", "medium": "medium", "few": "few"}
    if "miou" in result:
        names = {"miou": "mean IoU", **groups, "boundary_iou": "boundary IoU", "pixel_accuracy": "pixel accuracy"}
        names |= {"mean_accuracy": "mean accuracy"}
    else:
        names = {"top1": "all", "top5": "top 5", **groups, "macro": "macro"}
        if len(result.get("per_class", ())) <= 5:  # of five classes, the right one is always among the first five
            del names["top5"]
        names |= {"macro_f1": "macro F1", "geometric_mean": "geometric mean", "ece": "calibration error"}
    for key, name in names.items():
        value, classes = result.get(key), result.get("groups", {}).get(key)
        size = ""
        if classes is not None:
            tested = sum(row["group"] == key and row["test"] > 0 for row in result["per_class"])
            size = f"   ({plural(classes, 'class')}{f', {tested} of them tested' if tested < classes else ''})"
        if key == "miou":
            size = f"   (over {result['measured']} of {plural(len(result['per_class']), 'class')})"
        if key == "top1" and "n" in result:
            size = f"   ({plural(result['n'], 'image')})"
        print(f"{name:<18} {'  none' if value is None else f'{100 * value:5.1f}%'}{size}")
    if cost := result.get("cost"):
        models = f"{plural(cost['models'], 'model')}, "
        size = f"{cost['parameters'] / 1e6:.2f} M parameters"
        print(f"{'cost':<18} {models}{size}, {cost['gflops']:.3g} GFLOPs per image")
