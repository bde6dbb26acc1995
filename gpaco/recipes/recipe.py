"""A recipe has the settings of a run (gpaco/recipes/settings.py); it is read from TOML and written back.

A recipe has names and numbers; nothing in it is ever executed. `[[stage]]` tables split a run into stages that run one
after another: each is the recipe with the changes of that stage.

A file may start with `base = "NAME"`, the name of a packaged recipe: it then lists only its changes. The [source] of
the base is not inherited.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpaco.errors import UserError, nearest
from gpaco.recipes import paper_rows
from gpaco.recipes.settings import MethodSettings, PaperRow, Recipe, Stage, used
from gpaco.recipes.validation import (
    FIELDS,
    KINDS,
    SETTINGS,
    check_combinations,
    check_effective,
    check_exists,
    check_used,
    checked,
    elsewhere,
    named,
    show,
    typed,
)

Change = tuple[str, str, Any]  # section, key, value


# Reading


def load(path_or_name: str | Path, *, paper: bool = False) -> Recipe:
    """Load a recipe from a file or run folder, or by name from the package; `./NAME` is a folder of that name.

    `paper`, or "-paper" after the name, selects the values of the paper's text where the released code differs.
    """
    path = Path(path_or_name)
    if isinstance(path_or_name, str) and path_or_name.removesuffix("-paper") in paper_rows.names():
        return _load_packaged(path_or_name, paper)
    if path.is_dir():
        path = path / "recipe.toml"
    if path.suffix != ".toml" and not path.is_file():
        return _load_packaged(str(path_or_name), paper)
    if paper:
        raise UserError(f"{path} is a file, which has only one value per setting", "leave out --paper")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UserError(f"cannot read the recipe {str(path)!r}: {reason}", "`gpaco recipes` lists names") from error
    return loads(text, path.stem, source=str(path))


def loads(text: str, name: str = "", *, source: str = "") -> Recipe:
    """Parse TOML text. `name` is the recipe's name unless the text has one; messages begin with `source`."""
    source = _one_line(source or name or "recipe")
    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        message = " ".join(str(error).split())
        message = message.replace("at end of document", f"at line {len(text.splitlines())}, the last one")
        raise UserError(f"{source} is not valid TOML: {message}", "fix that line; strings need quotes") from error
    with named(source):
        return _from_tables(tables, name)


def stages(recipe: Recipe) -> list[Recipe]:
    """Return the recipes to run one after another, named after their stages; without stages, the recipe itself."""
    return [_with(replace(recipe, name=one.name, stage=()), one.changes) for one in recipe.stage] or [recipe]


def _load_packaged(name: str, paper: bool = False) -> Recipe:
    plain, paper = name.removesuffix("-paper"), paper or name.endswith("-paper")
    return _from_tables(paper_rows.tables(plain, paper=paper), f"{plain}-paper" if paper else plain)


def _from_tables(tables: dict[str, Any], name: str) -> Recipe:
    tables = dict(tables)
    recipe = _load_packaged(_name(tables.pop("base"))) if "base" in tables else Recipe()
    recipe = replace(recipe, name=_name(tables.pop("name", name)), source=PaperRow())
    if "stage" in tables:
        recipe = replace(recipe, stage=tuple(_read_stages(tables.pop("stage"))))
    changes = list(_read_settings(tables))
    recipe = _consistent(_with(recipe, changes))
    own = [change for stage in recipe.stage for change in stage.changes]
    check_used([f"{section}.{key}" for section, key, _ in [*changes, *own]], _methods(recipe), {})
    return recipe


def _methods(recipe: Recipe) -> list[MethodSettings]:
    return [stage.method for stage in stages(recipe)]


def _read_settings(tables: dict[str, Any]) -> Iterator[Change]:
    for section, table in tables.items():
        check_exists(section)
        if not isinstance(table, dict):
            raise UserError(f"{section} is a section, got {show(table)}", f"write [{section}], then its settings")
        for key, raw in table.items():
            yield section, key, checked(section, key, raw)


def _read_stages(tables: Any) -> Iterator[Stage]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UserError("stages are tables", 'write [[stage]], then name = "..." and its changes')
    taken: set[str] = set()
    for table in tables:
        name = _name(table.get("name", ""))
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) or name in taken:
            raise UserError(
                f"every stage needs a unique name, got {show(name)}",
                'for example name = "linear": lowercase letters, digits, - and _',
            )
        taken.add(name)
        yield Stage(name, _ordered(_read_settings({key: one for key, one in table.items() if key != "name"})))


def _name(raw: Any) -> str:
    if typed(raw, str) is None:
        raise UserError(f"a name must be text, got {show(raw)}", 'put it in quotes: name = "..."')
    return str(raw)


# Changing


def change(recipe: Recipe, values: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> Recipe:
    """Return the recipe with new values, by "section.key" or "stage.NAME.section.key".

    `sources` maps settings to the command-line options that they came from, for messages.

    >>> change(Recipe(), {"optimizer.lr": 0.1}).optimizer.lr
    0.1
    """
    sources = dict(sources or {})
    for name, raw in values.items():
        with named(sources.get(name, "")):
            *stage, section, key = name.split(".")
            new = section, key, checked(section, key, raw)
            recipe = _with_stage_change(recipe, stage[1], new) if stage else _with_base_change(recipe, new)
    check_used(values, _methods(recipe), sources)
    recipe = _consistent(recipe, sources)
    check_effective(values, stages(recipe), sources)
    return recipe


def fill(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return the recipe with these values, by "section.key"; stages that set their own keep them."""
    changes = []
    for name, raw in values.items():
        section, key = name.split(".")
        changes.append((section, key, checked(section, key, raw)))
    return _consistent(_with(recipe, changes))


def override(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """Return the recipe with changes such as "method.alpha=0.02" or "stage.linear.train.epochs=10"."""
    return change(recipe, *parse(changes))


def parse(changes: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Parse "section.key=value" strings; return values and options, both by setting."""
    values, sources = {}, {}
    for text in changes:
        option = f"--set {_one_line(text)}"
        with named(option):
            left, equals, value = (part.strip() for part in text.partition("="))
            path = left.split(".")
            if not equals and len(path) in (2, 4):
                raise UserError(f"{left} has no value", f"--set {left}=VALUE")
            if not equals or len(path) != (4 if path[0] == "stage" else 2):
                raise UserError(f"expected section.key=value{elsewhere(path[-1])}", "such as method.alpha=0.02")
            *stage, section, key = path
            check_exists(section, key)
            name = ".".join([*stage, section, key])
            values[name], sources[name] = _parse_value(value, KINDS[section][key]), option
    return values, sources


def _parse_value(text: str, kind: Any) -> Any:
    """Parse a value from the command line; invalid text is returned unchanged, and refused later."""
    try:
        if kind is int or kind is float:
            return kind(text)
        if kind is not str or text[:1] in ('"', "'"):
            tables = tomllib.loads(f"value = {text}")
            return tables["value"] if len(tables) == 1 else text
    except ValueError:
        pass
    return text


def _with(recipe: Recipe, changes: Iterable[Change]) -> Recipe:
    for section, key, value in changes:
        recipe = replace(recipe, **{section: replace(getattr(recipe, section), **{key: value})})
    return recipe


def _with_base_change(recipe: Recipe, new: Change) -> Recipe:
    """Return the recipe with a change; raise an error if a stage would undo it."""
    section, key, value = new
    for stage in recipe.stage:
        if any(own[:2] == (section, key) for own in stage.changes):
            raise UserError(
                f"stage {stage.name!r} sets {section}.{key} itself",
                f"change it for that stage: stage.{stage.name}.{section}.{key}={value}",
            )
    return _with(recipe, [new])


def _with_stage_change(recipe: Recipe, name: str, new: Change) -> Recipe:
    known = [stage.name for stage in recipe.stage]
    if name not in known:
        raise UserError(
            f"there is no stage {show(name)}{nearest(name, known)}", f"stages are: {', '.join(known) or 'none'}"
        )
    changed = list(recipe.stage)
    others = [own for own in changed[known.index(name)].changes if own[:2] != new[:2]]
    changed[known.index(name)] = Stage(name, _ordered([*others, new]))
    return replace(recipe, stage=tuple(changed))


def _ordered(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Sort the changes of a stage in the order of the settings, so that equal stages compare equal."""
    return tuple(sorted(changes, key=lambda one: SETTINGS.index(f"{one[0]}.{one[1]}")))


def _consistent(recipe: Recipe, sources: dict[str, str] | None = None) -> Recipe:
    """Return the recipe if its settings are consistent in every stage."""
    for one in stages(recipe):
        check_combinations(one, one.name if recipe.stage else "", sources)
    return recipe


# Writing


def is_own(path: Path) -> bool:
    """Return whether a recipe file is as `dumps` writes it, so nobody has edited it."""
    return path.read_text(encoding="utf-8") == dumps(load(path))


def dumps(recipe: Recipe, *, explain: bool = False, every: bool = False) -> str:
    """Return TOML with every setting, which loads back to an equal recipe; `explain` adds a comment to each.

    `every` includes settings of other methods, which are not allowed in a recipe.
    """
    of_methods = {key for one in _methods(recipe) for key in used(one.name, one.first)}
    lines = [f"name = {in_toml(recipe.name)}"]
    for section, known in FIELDS.items():
        values = asdict(getattr(recipe, section))
        if section == "source":
            values = {key: value for key, value in values.items() if value or (key == "ours" and recipe.source.table)}
        if section == "method" and not every:
            values = {key: value for key, value in values.items() if key in of_methods}
        lines += ["", f"[{section}]"] if values else []
        for key, value in values.items():
            lines.append(f"{key} = {in_toml(value)}" + (f"  # {known[key].metadata['about']}" if explain else ""))
    for stage in recipe.stage:
        lines += ["", "[[stage]]", f"name = {in_toml(stage.name)}"]
        lines += [f"{section}.{key} = {in_toml(value)}" for section, key, value in stage.changes]
    return "\n".join(lines) + "\n"


def diff(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, by "section.key", with both values.

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
    """Return a value in TOML syntax."""
    if isinstance(value, str):
        return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in value) + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(in_toml, value))}]"
    return repr(value)


def as_given(value: Any) -> str:
    """Return a value as --set takes it.

    >>> as_given("rand"), as_given(""), as_given(True), as_given((256, 256))
    ('rand', '""', 'true', '[256, 256]')
    """
    return value if value and isinstance(value, str) else in_toml(value)


def _one_line(text: str) -> str:
    return text if text.isprintable() else repr(text)
