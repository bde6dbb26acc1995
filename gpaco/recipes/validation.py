"""What a setting may be: its type, its bounds, and what it must agree with."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import Field, fields
from numbers import Integral, Real
from typing import Any, get_type_hints

from gpaco.errors import UserError, nearest
from gpaco.recipes.settings import SECTIONS, Recipe

FIELDS: dict[str, dict[str, Field[Any]]] = {s: {f.name: f for f in fields(kind)} for s, kind in SECTIONS.items()}
KINDS = {section: get_type_hints(kind) for section, kind in SECTIONS.items()}
SETTINGS = [f"{section}.{key}" for section, known in FIELDS.items() for key in known]
_WORDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    tuple[int, ...]: "a list of whole numbers",
    tuple[float, ...]: "a list of numbers",
    tuple[str, ...]: "a list of texts",
}


@contextmanager
def named(shown: str) -> Iterator[None]:
    """Begin the message of every error with the file or the option that it is about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{shown}: {error.cause}" if shown else error.cause, error.remedy) from None


# One setting


def checked(section: str, key: str, raw: Any) -> Any:
    """The value in the type of its setting, if there is such a setting and the value is within its bounds."""
    must_exist(section, key)
    kind, meta = KINDS[section][key], FIELDS[section][key].metadata
    choices, bounds = meta["choices"], meta["bounds"]
    value = typed(raw, kind)
    each = value if isinstance(value, tuple) else (value,)
    if value is not None and (value in choices if choices else all(_within(v, *bounds) for v in each)):
        return value
    expected = f"one of {', '.join(map(repr, choices))}" if choices else _WORDS[kind]
    limits = zip(("at least", "above", "at most", "below"), bounds, strict=True)
    if limit := " and ".join(f"{word} {bound:g}" for word, bound in limits if bound is not None):
        expected += f", {limit}"
    hint = nearest(raw, [str(one) for one in choices]) if isinstance(raw, str) else ""
    raise UserError(f"{section}.{key} must be {expected}, got {show(raw)}{hint}", f"it is: {meta['about']}")


def must_exist(section: str, key: str | None = None) -> None:
    """Raise an error if there is no such section, or no such setting in it."""
    if section not in SECTIONS:
        hint = elsewhere(section) or nearest(section, [*SECTIONS, "loss", "stage", "base"])
        raise UserError(f"there is no section {show(section)}{hint}", f"sections are {', '.join(SECTIONS)}")
    known = FIELDS[section]
    if key is not None and key not in known:
        hint = elsewhere(key) or nearest(key, known)
        raise UserError(f"[{section}] has no setting {show(key)}{hint}", f"it has {', '.join(known)}")


def elsewhere(key: str) -> str:
    """The end of a message about a key that is not here: the sections that have it, or nothing."""
    found = [f"{section}.{key}" for section, known in FIELDS.items() if key in known]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def typed(raw: Any, kind: Any) -> Any:
    """The raw value as `kind`, None if it is something else."""
    if kind is bool or isinstance(raw, bool):
        return raw if kind is bool and isinstance(raw, bool) else None
    if kind is int:
        return int(raw) if isinstance(raw, Integral) and abs(int(raw)) < 2**63 else None
    if kind is float:
        number = raw if isinstance(raw, int) else float(raw) if isinstance(raw, Real) else math.nan
        return float(number) if abs(number) < 1e300 else None  # neither NaN nor infinite
    if kind is str:
        whole = isinstance(raw, str) and not any("\ud800" <= c <= "\udfff" for c in raw)
        return raw if whole else None  # halves of characters come from file names that are not UTF-8
    if not isinstance(raw, list | tuple):
        return None
    items = tuple(typed(item, kind.__args__[0]) for item in raw)
    return None if None in items else items


def a_name(raw: Any) -> str:
    """The raw value, if it is text."""
    if typed(raw, str) is None:
        raise UserError(f"a name must be text, got {show(raw)}", 'put it in quotes: name = "..."')
    return str(raw)


def a_stage_name(raw: Any, taken: list[str]) -> str:
    """The raw value, if it can name a stage beside those that are taken."""
    name = a_name(raw)
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) or name in taken:
        raise UserError(
            f"every stage needs a name of its own, got {show(name)}",
            'for example name = "linear": small letters, digits, - and _',
        )
    return name


def show(value: Any) -> str:
    """A value in a message: on one line, not too long."""
    if isinstance(value, dict):
        return "a table"
    try:
        text = repr(list(value) if isinstance(value, tuple) else value)
    except (ValueError, RecursionError):  # thousands of digits or of brackets
        return "something huge"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _within(value: Any, low: float | None, above: float | None, high: float | None, below: float | None) -> bool:
    return (
        (low is None or value >= low)
        and (above is None or value > above)
        and (high is None or value <= high)
        and (below is None or value < below)
    )


# Settings that must agree


def refuse_conflicts(recipe: Recipe, stage: str = "", shown: dict[str, str] | None = None) -> None:
    """Raise an error if settings do not go together; `shown` says which option a setting came from."""
    for rules in (_data, _model_and_views, _segmentation, _optimizer_and_schedule, _source):
        for name, message in rules(recipe):
            section, key = name.split(".")
            got = show(getattr(getattr(recipe, section), key)) + (f" in stage {stage!r}" if stage else "")
            with named((shown or {}).get(name, "")):
                raise UserError(f"{name} {message}, got {got}", f"it is: {FIELDS[section][key].metadata['about']}")


def _data(recipe: Recipe) -> Iterator[tuple[str, str]]:
    data = recipe.data
    if data.few > data.many:
        yield "data.few", "must not be above data.many"
    if 0 < data.long_tail < 1:
        yield "data.long_tail", "must be 0 or at least 1"
    if len(data.expect_groups) not in (0, 3):
        yield "data.expect_groups", "must have three numbers: many, medium, few"


def _model_and_views(recipe: Recipe) -> Iterator[tuple[str, str]]:
    model, views = recipe.model, recipe.views
    if len(model.mean) not in (0, 3):
        yield "model.mean", "must have three numbers: red, green, blue"
    if len(model.std) != len(model.mean):
        yield "model.std", "must have as many numbers as model.mean"
    if not _rises(views.crop_scale) or len(views.crop_scale) == 1:
        yield "views.crop_scale", "must be [least, greatest]"


def _segmentation(recipe: Recipe) -> Iterator[tuple[str, str]]:
    scenes = recipe.segmentation
    for key in ("crop", "base_size", "window", "stride"):
        if len(getattr(scenes, key)) not in (0, 2):
            yield f"segmentation.{key}", "must have two numbers"
    if not _rises(scenes.scale) or len(scenes.scale) != 2:
        yield "segmentation.scale", "must be [least, greatest]"
    if scenes.pixels == 0:
        yield "segmentation.pixels", "must be at least 1, or -1 for all"
    if scenes.stride and not scenes.window:
        yield "segmentation.stride", "needs segmentation.window"
    if any(stride > window for stride, window in zip(scenes.stride, scenes.window, strict=False)):
        yield "segmentation.stride", "must not be above segmentation.window"
    if scenes.few > scenes.many:
        yield "segmentation.few", "must not be above segmentation.many"


def _optimizer_and_schedule(recipe: Recipe) -> Iterator[tuple[str, str]]:
    optimizer, schedule = recipe.optimizer, recipe.schedule
    if len(optimizer.betas) != 2:
        yield "optimizer.betas", "must have two numbers"
    if not _rises(schedule.steps):
        yield "schedule.steps", "must rise"
    if schedule.min_lr > optimizer.lr:
        yield "schedule.min_lr", "must not be above optimizer.lr"
    if schedule.name == "step-released" and (schedule.per != "epoch" or 0 < schedule.warmup < 1):
        yield "schedule.name", "goes per epoch, with warmup 0 or from 1"


def _source(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if not set(recipe.source.assumed) <= set(SETTINGS):
        yield "source.assumed", 'must name settings such as "method.alpha"'


def _rises(values: tuple[float, ...]) -> bool:
    return list(values) == sorted(values)
