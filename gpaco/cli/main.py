"""The command `gpaco`: how it starts, and how it ends, with a line about what went wrong and an exit code."""

import sys
from typing import Any, NoReturn

import typer

from gpaco import __version__
from gpaco.cli import commands_files  # noqa: F401 - its verbs are part of the app
from gpaco.cli.commands import app
from gpaco.cli.console import close, fail, fail_usage, plain_help
from gpaco.errors import Problem, UserError, nearest
from gpaco.system.faults import problem_of


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command and exit with its code: 0, 1 our bug, 2 wrong input, 3 environment, 4 diverged, 130 and 143."""
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words  # before or after the verb
    words = [word for word in words if word != "--debug"]
    try:
        try:
            code = _run(words)
        finally:
            close()
    except Problem as error:
        if debug:
            raise
        fail(error.cause, error.remedy)
        code = error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except Exception as error:
        from gpaco.system.signals import Stopped

        if hasattr(error, "format_message"):  # of click, which some versions of typer have a copy of
            fail_usage(error)
            code = 2
        elif isinstance(error, Stopped):
            print(f"{error}; the same command resumes", file=sys.stderr)
            code = error.exit_code
        elif debug:
            raise
        elif problem := problem_of(error):
            fail(problem.cause, problem.remedy)
            code = problem.exit_code
        else:
            fail(
                f"a bug in gpaco {__version__}: {type(error).__name__}: {error}",
                "add --debug to see where, and tell us",
            )
            code = 1
    _leave()
    sys.exit(code)


def _run(words: list[str]) -> int:
    command: Any = typer.main.get_command(app)
    for verb in command.commands.values():
        plain_help(verb)
    words = words or ["--help"]
    if not words[0].startswith("-") and words[0] not in command.commands:
        raise UserError(
            f"there is no command {words[0]!r}{nearest(words[0], command.commands)}",
            f"commands are {', '.join(command.commands)}",
        )
    code = command.main(args=words, prog_name="gpaco", standalone_mode=False)
    return code if isinstance(code, int) else 0


def _leave() -> None:
    if "torch" in sys.modules:
        from gpaco.system.distributed import stop

        stop()
