"""The `gpaco` command: runs a subcommand, prints its error, if any, and exits with a code."""

import os
import sys
from io import TextIOWrapper
from typing import Any, NoReturn

import typer

from gpaco import __version__
from gpaco.cli import files, sharing  # noqa: F401 - they add their commands to the app
from gpaco.cli.commands import app
from gpaco.cli.console import print_error, print_usage_error
from gpaco.cli.display import close
from gpaco.errors import Problem, UserError, nearest
from gpaco.system.faults import problem_of
from gpaco.system.signals import Stopped, end_with_first_signal


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command and exit.

    0 success, 1 our bug, 2 wrong input, 3 environment, 4 diverged, 130 and 143 signals, 141 closed pipe.
    """
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words  # before or after the command
    words = [word for word in words if word != "--debug"]
    end_with_first_signal()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 must not end a command
    try:
        try:
            code = _run(words)
        finally:
            close()
    except Problem as error:
        if debug:
            raise
        print_error(error.cause, error.remedy)
        code = error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more can be printed
        code = 141
    except SystemExit as error:  # 1: typer does this if the reader of a pipe is gone, as in `gpaco recipes | head -1`
        code = 141 if error.code == 1 else int(error.code or 0)
    except Exception as error:
        if hasattr(error, "format_message"):  # a click error; some versions of typer bundle their own click
            print_usage_error(error)
            code = 2
        elif isinstance(error, Stopped):
            print(f"{error}; rerun the same command to resume", file=sys.stderr)
            code = error.exit_code
        elif debug:
            raise
        elif problem := problem_of(error):
            print_error(problem.cause, problem.remedy)
            code = problem.exit_code
        else:
            print_error(
                f"a bug in gpaco {__version__}: {type(error).__name__}: {error}",
                "please report it, with the output of the same command and --debug",
            )
            code = 1
    if sys.modules.get("torch"):
        from gpaco.system.distributed import stop

        stop()
    sys.exit(code)


def _run(words: list[str]) -> int:
    command: Any = typer.main.get_command(app)
    for one in command.commands.values():
        simplify_help(one)
    words = words or ["--help"]
    if not words[0].startswith("-") and words[0] not in command.commands:
        raise UserError(
            f"there is no command {words[0]!r}{nearest(words[0], command.commands)}",
            f"commands are {', '.join(command.commands)}",
        )
    code = command.main(args=words, prog_name="gpaco", standalone_mode=False)
    return code if isinstance(code, int) else 0


def simplify_help(command: Any) -> None:
    """Show the arguments in a command's help as people type them, and its summary in full."""
    command.short_help = command.help.split("\n\n")[0].replace("\n", " ")
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper() + ("..." if parameter.nargs != 1 else "")
            usage = name if parameter.required else f"[{name}]"
            parameter.metavar = name
            parameter.get_usage_pieces = lambda context, usage=usage: [usage]
            parameter.get_help_record = lambda context, name=name, text=parameter.help: (name, text)
