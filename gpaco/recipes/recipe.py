"""A recipe: the settings of a run (gpaco/recipes/settings.py), read from TOML and written back.

A recipe names things and holds numbers; nothing in it is ever executed. `[[stage]]` tables turn one recipe into several
that run one after another: each is the base with its own changes on top.

A file may begin with `base = "NAME"`, the name of a recipe of the package: it then holds only what it changes of it.
The [source] of a base is not taken over.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpaco.errors import UserError, nearest
from gpaco.recipes import paper_rows
from gpaco.recipes.paper_rows import names as names
from gpaco.recipes.settings import PaperRow, Recipe, Stage
from gpaco.recipes.validation import (
    FIELDS,
    KINDS,
    SETTINGS,
    a_name,
    a_stage_name,
    checked,
    elsewhere,
    must_exist,
    named,
    refuse_conflicts,
    show,
)

_LONGEST = 1 << 20  # bytes of a recipe file

Change = tuple[str, str, Any]  # section, key, value


# Reading


def load(path_or_name: str | Path, *, paper: bool = False) -> Recipe:
    """The recipe in a file, of a run folder, or of the package by its name.

    `paper`, or "-paper" after the name, takes the values of the paper's text where the released code has others.
    """
    path, name = Path(path_or_name), str(path_or_name)
    if path.is_dir():
        path = path / "recipe.toml"
    if path.suffix != ".toml" and not path.is_file():
        plain, paper = name.removesuffix("-paper"), paper or name.endswith("-paper")
        recipe = _read(paper_rows.tables(plain, paper=paper), plain)
        return replace(recipe, name=f"{plain}-paper") if paper else recipe
    if paper:
        raise UserError(f"{path} is a file: it has one value for each setting", "leave out --paper")
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise UserError(f"cannot read the recipe {str(path)!r}: {reason}", "`gpaco recipes` lists names") from error
    if len(content) > _LONGEST:
        raise UserError(f"{str(path)!r} is too large for a recipe (over 1 MB)", "give the TOML file of a recipe")
    return loads(text, path.stem, shown=str(path))


def loads(text: str, name: str = "", *, shown: str = "") -> Recipe:
    """The recipe that TOML text describes: called `name` unless the text says otherwise, `shown` in messages."""
    shown = _one_line(shown or name or "recipe")
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        message = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        message = message.replace("at end of document", f"at line {len(text.splitlines())}, the last one")
        raise UserError(f"{shown} is not valid TOML: {message}", "correct that line; texts need quotes") from error
    with named(shown):
        return _read(tables, name)


def stages(recipe: Recipe) -> list[Recipe]:
    """The recipes to run one after another, each under its stage's name; without stages the recipe itself."""
    resolved = []
    for stage in recipe.stage:
        one = replace(recipe, name=stage.name, stage=())
        for change in stage.changes:
            one = _with(one, *change)
        resolved.append(one)
    return resolved or [recipe]


# Changing


def change(recipe: Recipe, values: Mapping[str, Any], shown: Mapping[str, str] | None = None) -> Recipe:
    """The recipe with other values, by "section.key" or "stage.NAME.section.key".

    `shown` are the options that they came from, for messages.

    >>> change(Recipe(), {"optimizer.lr": 0.1}).optimizer.lr
    0.1
    """
    shown = dict(shown or {})
    for name, raw in values.items():
        with named(shown.get(name, "")):
            *stage, section, key = name.split(".")
            new = section, key, checked(section, key, raw)
            recipe = _with_stage(recipe, stage[1], new) if stage else _with_own(recipe, new)
    return _consistent(recipe, shown)


def override(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """The recipe with changes such as "method.alpha=0.02", "loss.alpha=0.02" or "stage.linear.train.epochs=10"."""
    values, shown = parse(changes)
    return change(recipe, values, shown)


def parse(changes: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of changes in text by the names of their settings, and the options to call them by in messages."""
    values, shown = {}, {}
    for one in changes:
        option = f"--set {_one_line(one)}"
        with named(option):
            left, equals, text = (part.strip() for part in one.partition("="))
            path = left.split(".")
            if not equals or len(path) != (4 if path[0] == "stage" else 2):
                raise UserError(f"expected section.key=value{elsewhere(path[-1])}", "such as method.alpha=0.02")
            *stage, section, key = path
            section = "method" if section == "loss" else section
            must_exist(section, key)
            name = ".".join([*stage, section, key])
            values[name], shown[name] = _from_text(text, KINDS[section][key]), option
    return values, shown


# Writing


def dumps(recipe: Recipe, *, explain: bool = False) -> str:
    """TOML text, complete with defaults, that loads back equal; with a comment on every setting if asked."""
    lines = [f"name = {in_toml(recipe.name)}"]
    for section, known in FIELDS.items():
        values = asdict(getattr(recipe, section))
        if section == "source":
            values = {key: value for key, value in values.items() if value or (key == "ours" and recipe.source.table)}
        lines += ["", f"[{section}]"] if values else []
        for key, value in values.items():
            lines.append(f"{key} = {in_toml(value)}" + (f"  # {known[key].metadata['about']}" if explain else ""))
    for stage in recipe.stage:
        lines += ["", "[[stage]]", f"name = {in_toml(stage.name)}"]
        lines += [f"{section}.{key} = {in_toml(value)}" for section, key, value in stage.changes]
    return "\n".join(lines) + "\n"


def diff(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, by "section.key": their values in both.

    >>> diff(Recipe(), change(Recipe(), {"method.alpha": 0.02}))
    {'method.alpha': (0.05, 0.02)}
    """
    return {
        f"{section}.{key}": (a, b)
        for section, known in FIELDS.items()
        for key in known
        if (a := getattr(getattr(one, section), key)) != (b := getattr(getattr(other, section), key))
    }


def in_toml(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, str):
        return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in value) + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(in_toml, value))}]"
    return repr(value)


# Small parts


def _read(tables: dict[str, Any], name: str) -> Recipe:
    """The recipe that tables describe."""
    recipe = Recipe()
    if "base" in tables:
        recipe = load(_known(a_name(tables["base"])))
    recipe = replace(recipe, name=a_name(tables.get("name", name)), source=PaperRow())
    if "stage" in tables:
        recipe = replace(recipe, stage=_read_stages(tables["stage"]))
    for one in _read_settings({key: table for key, table in tables.items() if key not in ("base", "name", "stage")}):
        recipe = _with(recipe, *one)
    return _consistent(recipe)


def _known(base: str) -> str:
    if base.removesuffix("-paper") not in names():
        raise UserError(f"there is no recipe {show(base)}{nearest(base, names())}", "`gpaco recipes` lists all")
    return base


def _read_settings(tables: dict[str, Any]) -> Iterator[Change]:
    for section, table in tables.items():
        must_exist(section)
        if not isinstance(table, dict):
            raise UserError(f"{section} is a section, got {show(table)}", f"write [{section}], then its settings")
        for key, raw in table.items():
            yield section, key, checked(section, key, raw)


def _read_stages(tables: Any) -> tuple[Stage, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UserError("stages are tables", 'write [[stage]], then name = "..." and its changes')
    built: list[Stage] = []
    for table in tables:
        name = a_stage_name(table.get("name", ""), [stage.name for stage in built])
        changes = _read_settings({key: one for key, one in table.items() if key != "name"})
        built.append(Stage(name, _ordered(changes)))
    return tuple(built)


def _consistent(recipe: Recipe, shown: dict[str, str] | None = None) -> Recipe:
    """The recipe, if its settings go together, in every stage."""
    for one in stages(recipe):
        refuse_conflicts(one, one.name if recipe.stage else "", shown)
    return recipe


def _with(recipe: Recipe, section: str, key: str, value: Any) -> Recipe:
    changed: Recipe = replace(recipe, **{section: replace(getattr(recipe, section), **{key: value})})
    return changed


def _with_own(recipe: Recipe, new: Change) -> Recipe:
    """The recipe with a change that no stage undoes."""
    section, key, value = new
    for stage in recipe.stage:
        if any(theirs[:2] == (section, key) for theirs in stage.changes):
            raise UserError(
                f"stage {stage.name!r} sets {section}.{key} itself",
                f"say it for that stage: stage.{stage.name}.{section}.{key}={value}",
            )
    return _with(recipe, *new)


def _with_stage(recipe: Recipe, name: str, new: Change) -> Recipe:
    known = [stage.name for stage in recipe.stage]
    if name not in known:
        raise UserError(
            f"there is no stage {show(name)}{nearest(name, known)}", f"stages are: {', '.join(known) or 'none'}"
        )
    changed = list(recipe.stage)
    others = [theirs for theirs in changed[known.index(name)].changes if theirs[:2] != new[:2]]
    changed[known.index(name)] = Stage(name, _ordered([*others, new]))
    return replace(recipe, stage=tuple(changed))


def _ordered(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Changes in the order of sections and settings: those of a stage do not depend on how they came."""
    return tuple(sorted(changes, key=lambda one: SETTINGS.index(f"{one[0]}.{one[1]}")))


def _from_text(text: str, kind: Any) -> Any:
    """A value typed on the command line; what makes no sense is handed on as text, to be refused."""
    try:
        if kind is int or kind is float:
            return kind(text)
        if kind is bool:
            return {"true": True, "false": False}[text]
        if kind is str and text[:1] not in ('"', "'"):
            return text
        tables = tomllib.loads(f"value = {text}")
        return tables["value"] if len(tables) == 1 else text
    except (ValueError, KeyError, RecursionError):
        return text


def _one_line(text: str) -> str:
    return text if text.isprintable() else repr(text)
