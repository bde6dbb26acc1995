"""A recipe: the settings of a run (gpaco/settings.py), read from TOML and written back.

A recipe names things and holds numbers; nothing in it is ever executed. `[[stage]]` tables turn one recipe into several
that run one after another: each is the base with its own changes on top.

A file may begin with `base = "NAME"`, the name of a complete recipe of the package: it then holds only what it changes
of it. A base has no base itself, and its [source] is not taken over.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import Field, asdict, fields, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, get_type_hints

from gpaco.errors import UserError, nearest
from gpaco.settings import SECTIONS, Recipe, Source, Stage

_FIELDS: dict[str, dict[str, Field[Any]]] = {s: {f.name: f for f in fields(kind)} for s, kind in SECTIONS.items()}
_KINDS = {section: get_type_hints(kind) for section, kind in SECTIONS.items()}
_WORDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    tuple[int, ...]: "a list of whole numbers",
    tuple[float, ...]: "a list of numbers",
    tuple[str, ...]: "a list of texts",
}
_LONGEST = 1 << 20  # bytes of a recipe file

Keys = Sequence[str | int]  # keys from the outside in; a number is the place of a stage
Where = Callable[[Keys], str]  # the words that say where a key stands
At = Callable[[], str]  # the same for one key; finding its line takes time, so only when something is wrong


# Reading


def load(path_or_name: str | Path) -> Recipe:
    """The recipe in a file, of a run folder, or of the package by its name."""
    path, name = Path(path_or_name), str(path_or_name)
    if path.is_dir():
        path = path / "recipe.toml"
    if path.suffix != ".toml" and not path.is_file():
        if name not in names():
            raise UserError(f"there is no recipe {name!r}{nearest(name, names())}", "`gpaco recipes` lists them all")
        path = _FOLDER / f"{name}.toml"
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


def names() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(file.stem for file in _FOLDER.glob("*.toml"))


def loads(text: str, name: str = "", *, shown: str = "") -> Recipe:
    """The recipe that TOML text describes: called `name` unless the text says otherwise, `shown` in messages."""
    shown = _one_line(shown or name or "recipe")
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        message = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        message = message.replace("at end of document", f"at line {len(text.splitlines())}, the last one")
        raise UserError(f"{shown} is not valid TOML: {message}", "correct that line; texts need quotes") from error

    def where(path: Keys) -> str:
        return f"{shown}, line {_line(text, path)}"

    recipe = _base(tables.pop("base"), partial(where, ["base"])) if "base" in tables else Recipe()
    recipe = replace(recipe, name=_text(tables.pop("name", name), partial(where, ["name"])), source=Source())
    if "stage" in tables:
        recipe = replace(recipe, stage=_read_stages(tables.pop("stage"), where))
    for section, key, value in _read_settings(tables, (), where):
        recipe = _with(recipe, section, key, value)
    return _consistent(recipe, where)


def override(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """The recipe with changes such as "method.alpha=0.02", "loss.alpha=0.02" or "stage.linear.train.epochs=10"."""
    said: dict[Keys, str] = {}
    for change in changes:
        left, equals, text = (part.strip() for part in change.partition("="))
        stage, path, shown = "", left.split("."), f"--set {_one_line(change)}"
        if path[0] == "stage" and len(path) > 2:
            stage, path = path[1], path[2:]
        if not equals or len(path) != 2:
            raise UserError(f"{shown}: expected section.key=value{_elsewhere(path[-1])}", "such as method.alpha=0.02")
        section, key = "method" if path[0] == "loss" else path[0], path[1]
        at = partial(str, shown)
        _must_exist(section, key, at)
        value = _value(section, key, _from_text(text, _KINDS[section][key]), at)
        if stage:
            recipe = _with_stage(recipe, stage, (section, key, value), shown)
            continue
        for one in recipe.stage:
            if any(theirs[:2] == (section, key) for theirs in one.changes):
                raise UserError(
                    f"{shown}: stage {one.name!r} sets {section}.{key} itself",
                    f"say it for that stage: stage.{one.name}.{section}.{key}={text}",
                )
        recipe = _with(recipe, section, key, value)
        said[section, key] = shown
    return _consistent(recipe, lambda path: said.get(tuple(path), "--set"))


def stages(recipe: Recipe) -> list[Recipe]:
    """The recipes to run one after another, each under its stage's name; without stages the recipe itself."""
    resolved = []
    for stage in recipe.stage:
        one = replace(recipe, name=stage.name, stage=())
        for change in stage.changes:
            one = _with(one, *change)
        resolved.append(one)
    return resolved or [recipe]


# Writing


def dumps(recipe: Recipe, *, explain: bool = False) -> str:
    """TOML text, complete with defaults, that loads back equal; with a comment on every setting if asked."""
    lines = [f"name = {_toml(recipe.name)}"]
    for section, known in _FIELDS.items():
        values = asdict(getattr(recipe, section))
        if section == "source":
            values = {key: value for key, value in values.items() if value or (key == "ours" and recipe.source.table)}
        lines += ["", f"[{section}]"] if values else []
        for key, value in values.items():
            lines.append(f"{key} = {_toml(value)}" + (f"  # {known[key].metadata['about']}" if explain else ""))
    for stage in recipe.stage:
        lines += ["", "[[stage]]", f"name = {_toml(stage.name)}"]
        lines += [f"{section}.{key} = {_toml(value)}" for section, key, value in stage.changes]
    return "\n".join(lines) + "\n"


def diff(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, by "section.key": their values in both.

    >>> diff(Recipe(), override(Recipe(), ["loss.alpha=0.02"]))
    {'method.alpha': (0.05, 0.02)}
    """
    return {
        f"{section}.{key}": (a, b)
        for section, known in _FIELDS.items()
        for key in known
        if (a := getattr(getattr(one, section), key)) != (b := getattr(getattr(other, section), key))
    }


# From raw values to settings, and what is wrong with them


def _read_settings(tables: dict[str, Any], inside: Keys, where: Where) -> Iterator[tuple[str, str, Any]]:
    """(section, key, value) of everything in the tables."""
    for section, table in tables.items():
        at = partial(where, [*inside, section])
        _must_exist(section, None, at)
        if not isinstance(table, dict):
            raise UserError(
                f"{at()}: {section} is a section, got {_show(table)}", f"write [{section}], then its settings"
            )
        for key, raw in table.items():
            at = partial(where, [*inside, section, key])
            _must_exist(section, key, at)
            yield section, key, _value(section, key, raw, at)


def _base(raw: Any, at: At) -> Recipe:
    """The complete recipe that another one starts from."""
    name = _text(raw, at)
    if name not in names():
        raise UserError(
            f"{at()}: there is no recipe {_show(name)}{nearest(name, names())}", "`gpaco recipes` lists all"
        )
    text = (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    further = tomllib.loads(text).get("base")
    if further:
        raise UserError(f"{at()}: {name} has a base itself, {further}", f"start from {further}, or a complete recipe")
    return loads(text, name)


def _read_stages(tables: Any, where: Where) -> tuple[Stage, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UserError(f"{where(['stage'])}: stages are tables", 'write [[stage]], then name = "..." and its changes')
    built: list[Stage] = []
    for i, table in enumerate(tables):
        at = partial(where, ["stage", i, "name"])
        name = _text(table.pop("name", ""), at)
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) or name in [stage.name for stage in built]:
            raise UserError(
                f"{at()}: every stage needs a name of its own, got {_show(name)}",
                'for example name = "linear": small letters, digits, - and _',
            )
        built.append(Stage(name, _ordered(_read_settings(table, ("stage", i), where))))
    return tuple(built)


def _must_exist(section: str, key: str | None, at: At) -> None:
    if section not in SECTIONS:
        hint = _elsewhere(section) or nearest(section, [*SECTIONS, "loss", "stage", "base"])
        raise UserError(f"{at()}: there is no section {_show(section)}{hint}", f"sections are {', '.join(SECTIONS)}")
    known = _FIELDS[section]
    if key is not None and key not in known:
        hint = _elsewhere(key) or nearest(key, known)
        raise UserError(f"{at()}: [{section}] has no setting {_show(key)}{hint}", f"it has {', '.join(known)}")


def _elsewhere(key: str) -> str:
    """The end of a message about a key that is not here: the sections that have it, or nothing."""
    found = [f"{section}.{key}" for section, known in _FIELDS.items() if key in known]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _value(section: str, key: str, raw: Any, at: At) -> Any:
    """The raw value in its type, if it is of that type and within its bounds."""
    kind, meta = _KINDS[section][key], _FIELDS[section][key].metadata
    choices, bounds = meta["choices"], meta["bounds"]
    value = _typed(raw, kind)
    each = value if isinstance(value, tuple) else (value,)
    if value is not None and (value in choices if choices else all(_within(v, *bounds) for v in each)):
        return value
    expected = f"one of {', '.join(map(repr, choices))}" if choices else _WORDS[kind]
    limits = zip(("at least", "above", "at most", "below"), bounds, strict=True)
    if limit := " and ".join(f"{word} {bound:g}" for word, bound in limits if bound is not None):
        expected += f", {limit}"
    hint = nearest(raw, [str(one) for one in choices]) if isinstance(raw, str) else ""
    raise UserError(f"{at()}: {section}.{key} must be {expected}, got {_show(raw)}{hint}", f"it is: {meta['about']}")


def _within(value: Any, low: float | None, above: float | None, high: float | None, below: float | None) -> bool:
    return (
        (low is None or value >= low)
        and (above is None or value > above)
        and (high is None or value <= high)
        and (below is None or value < below)
    )


def _typed(raw: Any, kind: Any) -> Any:
    """The raw value as `kind`, None if it is something else."""
    if kind is bool or isinstance(raw, bool):
        return raw if kind is bool and isinstance(raw, bool) else None
    if kind is int:
        return raw if isinstance(raw, int) and abs(raw) < 2**63 else None
    if kind is float:
        return float(raw) if isinstance(raw, int | float) and abs(raw) < 1e300 else None  # neither NaN nor infinite
    if kind is str:
        whole = isinstance(raw, str) and not any("\ud800" <= c <= "\udfff" for c in raw)
        return raw if whole else None  # halves of characters come from file names that are not UTF-8
    if not isinstance(raw, list):
        return None
    items = tuple(_typed(item, kind.__args__[0]) for item in raw)
    return None if None in items else items


def _consistent(recipe: Recipe, where: Where) -> Recipe:
    """The recipe, if its settings go together, in every stage."""
    for one in stages(recipe):
        data, model, views, optimiser, schedule = one.data, one.model, one.views, one.optimiser, one.schedule
        scenes = one.segmentation
        per_epoch = schedule.per == "epoch" and (schedule.warmup == 0 or schedule.warmup >= 1)
        unknown = [key for key in one.source.assumed if key not in _ALL]
        rules = (
            (data.few <= data.many, "data.few", "must not be above data.many"),
            (data.long_tail == 0 or data.long_tail >= 1, "data.long_tail", "must be 0 or at least 1"),
            (len(data.expect_groups) in (0, 3), "data.expect_groups", "must have three numbers: many, medium, few"),
            (len(model.mean) in (0, 3), "model.mean", "must have three numbers: red, green, blue"),
            (len(model.std) == len(model.mean), "model.std", "must have as many numbers as model.mean"),
            (_rises(views.crop_scale) and len(views.crop_scale) != 1, "views.crop_scale", "must be [least, greatest]"),
            *(
                (len(getattr(scenes, key)) in (0, 2), f"segmentation.{key}", "must have two numbers")
                for key in ("crop", "base_size", "window", "stride")
            ),
            (_rises(scenes.scale) and len(scenes.scale) == 2, "segmentation.scale", "must be [least, greatest]"),
            (scenes.pixels != 0, "segmentation.pixels", "must be at least 1, or -1 for all"),
            (not scenes.stride or scenes.window, "segmentation.stride", "needs segmentation.window"),
            (
                all(a <= b for a, b in zip(scenes.stride, scenes.window, strict=False)),
                "segmentation.stride",
                "must not be above segmentation.window",
            ),
            (scenes.few <= scenes.many, "segmentation.few", "must not be above segmentation.many"),
            (len(optimiser.betas) == 2, "optimiser.betas", "must have two numbers"),
            (_rises(schedule.steps), "schedule.steps", "must rise"),
            (schedule.min_lr <= optimiser.lr, "schedule.min_lr", "must not be above optimiser.lr"),
            (schedule.name != "step-released" or per_epoch, "schedule.name", "goes per epoch, with warmup 0 or from 1"),
            (not unknown, "source.assumed", 'must name settings such as "method.alpha"'),
        )
        for good, name, message in rules:
            if not good:
                section, key = name.split(".")
                stage = f" in stage {one.name!r}" if recipe.stage else ""
                cause = f"{name} {message}, got {_show(getattr(getattr(one, section), key))}{stage}"
                raise UserError(
                    f"{where([section, key])}: {cause}", f"it is: {_FIELDS[section][key].metadata['about']}"
                )
    return recipe


# Small parts

_FOLDER = Path(__file__).parent / "recipes"
_ALL = [f"{section}.{key}" for section, known in _FIELDS.items() for key in known]


def _with(recipe: Recipe, section: str, key: str, value: Any) -> Recipe:
    changed: Recipe = replace(recipe, **{section: replace(getattr(recipe, section), **{key: value})})
    return changed


def _with_stage(recipe: Recipe, name: str, change: tuple[str, str, Any], shown: str) -> Recipe:
    known = [stage.name for stage in recipe.stage]
    if name not in known:
        raise UserError(
            f"{shown}: there is no stage {_show(name)}{nearest(name, known)}",
            f"stages are: {', '.join(known) or 'none'}",
        )
    changed = list(recipe.stage)
    others = [theirs for theirs in changed[known.index(name)].changes if theirs[:2] != change[:2]]
    changed[known.index(name)] = Stage(name, _ordered([*others, change]))
    return replace(recipe, stage=tuple(changed))


def _ordered(changes: Iterable[tuple[str, str, Any]]) -> tuple[tuple[str, str, Any], ...]:
    """Changes in the order of sections and settings: those of a stage do not depend on how they came."""
    return tuple(sorted(changes, key=lambda change: _ALL.index(f"{change[0]}.{change[1]}")))


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


def _text(raw: Any, at: At) -> str:
    if _typed(raw, str) is None:
        raise UserError(f"{at()}: a name must be text, got {_show(raw)}", 'put it in quotes: name = "..."')
    return str(raw)


def _rises(values: tuple[float, ...]) -> bool:
    return list(values) == sorted(values)


def _line(text: str, path: Keys) -> int:
    """The line, from 1, on which a key stands, or the nearest thing around it."""
    wanted, best, line, here, stage = [str(key) for key in path], 0, 1, list[str](), -1
    for number, row in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*(\[\[?)([^]]*)\]", row):
            here = _keys(header[2])
            stage += header[1] == "[["
            if here[0] == "stage":
                here.insert(1, str(stage))
            keys = here
        elif entry := re.match(r"\s*([^=#]+?)\s*=", row):
            keys = here + _keys(entry[1])
        else:
            continue
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(keys, wanted, strict=False)))
        if common > best:
            best, line = common, number
    return line


def _keys(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in value) + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)


def _one_line(text: str) -> str:
    return text if text.isprintable() else repr(text)


def _show(value: Any) -> str:
    """A value in a message: on one line, not too long."""
    if isinstance(value, dict):
        return "a table"
    try:
        text = repr(list(value) if isinstance(value, tuple) else value)
    except (ValueError, RecursionError):  # thousands of digits or of brackets
        return "something huge"
    return text if len(text) <= 60 else f"{text[:57]}..."
