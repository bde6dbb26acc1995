"""What the command prints: lines, bars, figures, and errors with their remedy."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from gpaco.errors import nearest


def usage(error: Any) -> tuple[str, str]:
    """Cause and remedy of words that the command line does not have."""
    context = error.ctx
    cause = " ".join(error.format_message().split()).rstrip(".")
    option = getattr(error, "option_name", "")
    if option and hasattr(error, "possibilities"):
        known = [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
        known += ["--help", "--version"]
        cause = f"there is no option {option!r}{nearest(option, known)}"
    return cause[:1].lower() + cause[1:], f"`{context.command_path if context else 'gpaco'} --help` tells more"


def plain_help(command: Any) -> None:
    """Let the help of a command name its arguments as people write them, without types of Python."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper() + ("..." if parameter.nargs != 1 else "")
            parameter.metavar = name
            shown = name if parameter.required else f"[{name}]"
            parameter.get_usage_pieces = lambda context, shown=shown: [shown]
            parameter.get_help_record = lambda context, name=name, text=parameter.help: (name, text)


def fail(cause: str, remedy: str) -> None:
    print(f"error: {cause}\n  {remedy}", file=sys.stderr)


def speaks() -> bool:
    """Of several processes only the first one prints what all of them know."""
    return os.environ.get("RANK", "0") == "0"


def say(as_json: bool) -> Callable[[str], None]:
    if not speaks():
        return lambda line: None
    return (lambda line: print(line, file=sys.stderr)) if as_json else print


def display(as_json: bool) -> Callable[[dict[str, Any]], None]:
    from gpaco.display import display

    if not speaks():
        return lambda row: None
    return display(sys.stderr if as_json else sys.stdout)


def bar(title: str, as_json: bool) -> Any:
    from gpaco.display import bar

    return bar(title) if speaks() else nullcontext(lambda done, total: None)


def print_figures(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    from gpaco.matching import counted

    groups = {"many": "many", "medium": "medium", "few": "few"}
    if "miou" in result:
        keys = {"miou": "mean IoU", **groups, "boundary_iou": "boundary IoU", "pixel_accuracy": "pixel accuracy"}
        keys |= {"mean_accuracy": "mean accuracy"}
    else:
        keys = {"top1": "all", "top5": "top 5", **groups, "macro": "macro"}
        keys |= {"macro_f1": "macro F1", "geometric_mean": "geometric mean", "ece": "calibration error"}
    for key, name in keys.items():
        value = result.get(key)
        classes = result.get("groups", {}).get(key)
        extra = "" if classes is None else f"   ({counted(classes, 'class')})"
        print(f"{name:<18} {'none' if value is None else f'{100 * value:5.1f} %'}{extra}")
