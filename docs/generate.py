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
from gpaco.recipes.listing import DATA, NOT_RUN, rows
from gpaco.recipes.paper_rows import differs
from gpaco.recipes.recipe import diff, in_toml, load
from gpaco.recipes.settings import METHODS, SECTIONS

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
        "prints the same list, `gpaco show RUN` the settings of a run. Without a recipe, `gpaco train` replaces some",
        "defaults with values chosen from the data: model, epochs, batch size, learning rate, memory, alpha and views.",
        "`gpaco check DATA` prints them.",
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


def recipe_tables() -> str:
    """Return the tables of docs/recipes.md, which follow the text of docs/recipes.head.md."""
    every, lines = rows(), []
    for data, title in DATA.items():
        mine = [row for row in every if row.data == data]
        first = next((row for row in mine if row.name.endswith("-gpaco")), mine[0])
        lines += ["", f"## {title}", "", f"    {first.source.command}", "", f"Hardware: {first.source.hardware}.", ""]
        lines += ["| recipe | paper | ours | row of the paper | `--paper`; assumed; notes |", "|---|---|---|---|---|"]
        for name, _, source in mine:
            assumed = [f"Assumed: {', '.join(source.assumed)}."] if source.assumed else []
            notes = " ".join([*by_the_text(name), *assumed, source.note]).strip()
            cells = (f"`{name}`", source.paper or "-", source.ours or NOT_RUN, f"{source.table}, {source.row}", notes)
            lines.append(f"| {' | '.join(cells)} |".replace("*", "\\*"))
    return "\n".join([*lines, ""])


def coverage() -> str:
    """Return the table of docs/paper_to_code.md that says which recipes belong to which table and figure."""
    found: dict[str, list[str]] = {}
    for name, _, source in rows():
        noted = re.findall(r"(?:Also in|\() ?Tables? (\d+)(?: and (\d+))?", source.note)
        also = [f"Table {number}" for pair in noted for number in pair if number]
        also += re.findall(r"Also in (Figure \d)", source.note)
        for table in (source.table, *also):
            found.setdefault(table, []).append(name)
    places = sorted(found, key=lambda place: (place.split()[0], int("".join(filter(str.isdigit, place)) or 0)))
    lines = [f"| {place} | {', '.join(f'`{name}`' for name in sorted(found[place]))} |" for place in places]
    return "\n".join(["| in the paper | recipes |", "|---|---|", *lines])


def by_the_text(name: str) -> list[str]:
    """Return a sentence with what --paper changes, if anything."""
    if not differs(name):
        return []
    changed = diff(load(name), load(name, paper=True))
    values = [f"{key} = {in_toml(text)}" for key, (_, text) in changed.items() if not key.startswith("source.")]
    return [f"Text: {', '.join(values)}."]


def method_table() -> str:
    """Return the table of methods of docs/methods.md."""
    lines = ["| method | reference | idea | settings |", "|---|---|---|---|"]
    for name, about in METHODS.items():
        settings = ", ".join(f"`{key}`" for key in about.uses)
        lines.append(f"| `{name}` | {about.paper or '-'} | {about.idea} | {settings or '-'} |")
    return "\n".join(lines)


def refresh(folder: Path) -> None:
    """Write the tables anew that stand in pages of the repository."""
    (folder / "recipes.md").write_text((folder / "recipes.head.md").read_text() + recipe_tables())
    for name, table in {"paper_to_code.md": coverage(), "methods.md": method_table()}.items():
        page, header = folder / name, table.strip().splitlines()[0]
        before, _, rest = page.read_text().partition(header)
        after = re.sub(r"\A.*\n(\|.*\n)*", "", rest)
        page.write_text(f"{before}{table.strip()}\n{after}")


if __name__ == "__main__":
    refresh(Path(__file__).parent)
