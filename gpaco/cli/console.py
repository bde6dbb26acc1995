"""What the command prints: lines, bars, figures, and errors with their remedy."""

import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpaco.cli.display import Display

_open: list["Display"] = []


def display(as_json: bool = False, epochs: bool = True) -> "Display":
    """Return where a command shows what it does: standard output, or with --json standard error."""
    from gpaco.cli.display import Display

    stream = (sys.stderr if as_json else sys.stdout) if speaks() else io.StringIO()
    _open.append(Display(stream, epochs))
    return _open[-1]


def close() -> None:
    """Leave the terminal as it should be."""
    while _open:
        _open.pop().close()


def speaks() -> bool:
    """Of several processes only the first one prints what all of them know."""
    return os.environ.get("RANK", "0") == "0"


def fail(cause: str, remedy: str) -> None:
    print(f"error: {cause}\n  {remedy}", file=sys.stderr)


def fail_usage(error: Any) -> None:
    """Say what click has to say about wrong words."""
    cause = " ".join(error.format_message().split()).rstrip(".")
    command = error.ctx.command_path if error.ctx else "gpaco"
    fail(cause[:1].lower() + cause[1:], f"`{command} --help` tells more")


def plain_help(command: Any) -> None:
    """Name arguments in the help as people write them, without types of Python, and do not cut off its summary."""
    command.short_help = command.help.split(".")[0] + "."
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper() + ("..." if parameter.nargs != 1 else "")
            shown = name if parameter.required else f"[{name}]"
            parameter.metavar = name
            parameter.get_usage_pieces = lambda context, shown=shown: [shown]
            parameter.get_help_record = lambda context, name=name, text=parameter.help: (name, text)


def print_figures(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    from gpaco.system.words import counted

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
