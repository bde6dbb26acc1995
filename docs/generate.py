"""Write what comes from the code: every command, setting and public name (called by conf.py), and tables in pages.

`python docs/generate.py`, which `make docs` calls, writes docs/recipes.md and the tables of recipes and methods anew.
"""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

import gpaco
from gpaco.cli.main import app, simplify_help
from gpaco.recipes.listing import coverage, markdown, methods_markdown
from gpaco.recipes.recipe import in_toml
from gpaco.recipes.settings import SECTIONS

LOSSES = ("GPaCoLoss", "gpaco_loss", "supcon_loss", "pixel_gpaco_loss", "Memory", "Classifier")


def write_all(folder: Path) -> None:
    """Write the pages into `folder`, each only if it changed, so that Sphinx builds only what is new."""
    for name, text in {"commands": commands(), "settings": settings(), "api": api()}.items():
        page = folder / "generated" / f"{name}.md"
        page.parent.mkdir(exist_ok=True)
        if not page.is_file() or page.read_text() != text:
            page.write_text(text)


def commands() -> str:
    """Return the page of commands, from their help."""
    group: Any = typer.main.get_command(app)
    lines = [
        "# Commands",
        "",
        "Every command prints this with `--help`. `--debug` prints the traceback of an error.",
        "",
    ]
    for name, command in group.commands.items():
        simplify_help(command)
        context = command.make_context(name, [], resilient_parsing=True)
        usage = " ".join(["gpaco", name, *command.collect_usage_pieces(context)])
        lines += [f"## gpaco {name}", "", "```text", usage, "```", "", inspect.cleandoc(command.help), ""]
        records = [p.get_help_record(context) for p in command.params if not getattr(p, "hidden", False)]
        rows = [
            f"| `{_cell(left)}` | {_cell(right)} |" for left, right in filter(None, records) if left != "-h, --help"
        ]
        lines += ["| | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def settings() -> str:
    """Return the page of settings: what a recipe may hold and `--set` may change."""
    lines = [
        "# Settings",
        "",
        "Change any of them with `--set section.key=value`, or in a [recipe](../recipes.md). `gpaco show default`",
        "prints the same list, `gpaco show RUN` the settings of a run.",
        "",
    ]
    for section, kind in SECTIONS.items():
        if section == "source":
            continue
        lines += [f"## {section}", "", "| setting | default | |", "|---|---|---|"]
        for field in fields(kind):
            choices = field.metadata["choices"]
            about = field.metadata["about"] + (f" ({', '.join(map(str, choices))})" if choices else "")
            lines.append(f"| `{section}.{field.name}` | `{_cell(in_toml(field.default))}` | {_cell(about)} |")
        lines.append("")
    return "\n".join(lines)


def api() -> str:
    """Return the page of public names, documented by their docstrings."""
    verbs = sorted(name for name, home in gpaco._HOME.items() if home.startswith("gpaco.api."))
    rest = sorted(set(gpaco._HOME) - set(verbs) - set(LOSSES) - {"analysis"})
    lines = ["# Python API", "", "`import gpaco` costs nothing: each name is loaded when it is first used.", ""]
    for title, names in (("The loss", LOSSES), ("What the commands do", verbs), ("Baselines", rest)):
        lines += [f"## {title}", ""]
        for name in names:
            lines += ["```{eval-rst}", _directive(name), "```", ""]
    lines += ["## gpaco.analysis", "", "```{eval-rst}", ".. automodule:: gpaco.analysis", "```", ""]
    from gpaco import analysis

    for name in sorted(analysis.__all__):
        value = getattr(analysis, name)
        kind = "autoclass" if inspect.isclass(value) else "autofunction"
        lines += ["```{eval-rst}", f".. {kind}:: gpaco.analysis.{name}", "```", ""]
    return "\n".join(lines)


def _directive(name: str) -> str:
    value = getattr(gpaco, name)
    if inspect.isclass(value):
        return f".. autoclass:: gpaco.{name}\n   :members:\n   :exclude-members: forward, train"
    return f".. autofunction:: gpaco.{name}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def refresh(folder: Path) -> None:
    """Write the tables anew that stand in pages of the repository."""
    (folder / "recipes.md").write_text((folder / "recipes.head.md").read_text() + markdown())
    for name, table in {"paper_to_code.md": coverage(), "methods.md": methods_markdown()}.items():
        page, header = folder / name, table.strip().splitlines()[0]
        before, _, rest = page.read_text().partition(header)
        after = re.sub(r"\A.*\n(\|.*\n)*", "", rest)
        page.write_text(f"{before}{table.strip()}\n{after}")


if __name__ == "__main__":
    refresh(Path(__file__).parent)
