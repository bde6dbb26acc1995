"""Checks settings: types, bounds, and combinations that make no sense."""

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields
from numbers import Integral, Real
from typing import Any, get_type_hints

from gpaco.errors import UserError, nearest
from gpaco.recipes.settings import METHODS, SECTIONS, MethodSettings, Recipe, used

FIELDS: dict[str, dict[str, Field[Any]]] = {s: {f.name: f for f in fields(kind)} for s, kind in SECTIONS.items()}
KINDS = {section: get_type_hints(kind) for section, kind in SECTIONS.items()}
SETTINGS = [f"{section}.{key}" for section, known in FIELDS.items() for key in known]
_NOUNS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    tuple[int, ...]: "a list of whole numbers",
    tuple[float, ...]: "a list of numbers",
    tuple[str, ...]: "a list of strings",
}
_HOLDS = {"at least": operator.ge, "above": operator.gt, "at most": operator.le, "below": operator.lt}


@contextmanager
def named(source: str) -> Iterator[None]:
    """Prefix error messages with the file or option that they are about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{source}: {error.cause}" if source else error.cause, error.remedy) from None


# One setting


def checked(section: str, key: str, raw: Any) -> Any:
    """Return a value in the type of its setting; raise an error if it has another type or is out of bounds."""
    check_exists(section, key)
    kind, meta = KINDS[section][key], FIELDS[section][key].metadata
    choices, bounds = meta["choices"], meta["bounds"]
    value = typed(raw, kind)
    each = value if isinstance(value, tuple) else (value,)
    within = value is not None and all(_HOLDS[word](one, bound) for one in each for word, bound in bounds.items())
    if within and (not choices or value in choices):
        return value
    expected = f"one of {', '.join(map(repr, choices))}" if choices else _NOUNS[kind]
    if bounds:
        expected += ", " + " and ".join(f"{word} {bound:g}" for word, bound in bounds.items())
    if isinstance(raw, str) and (hint := nearest(raw, map(str, choices))):
        raise UserError(f"{section}.{key} cannot be {show(raw)}{hint}", f"it must be {expected}")
    raise UserError(f"{section}.{key} must be {expected}, got {show(raw)}", f"what it sets: {meta['about']}")


def check_exists(section: str, key: str | None = None) -> None:
    """Raise an error for an unknown section or setting."""
    if section not in SECTIONS:
        hint = elsewhere(section) or nearest(section, [*SECTIONS, "stage", "base"])
        raise UserError(f"there is no section {show(section)}{hint}", f"sections are {', '.join(SECTIONS)}")
    known = FIELDS[section]
    if key is not None and key not in known:
        hint = elsewhere(key) or nearest(key, known)
        raise UserError(f"[{section}] has no setting {show(key)}{hint}", f"it has {', '.join(known)}")


def elsewhere(key: str) -> str:
    """Return the end of a message about a misplaced key: the settings of that name in other sections, if any."""
    found = [name for name in SETTINGS if name.endswith(f".{key}")]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def typed(raw: Any, kind: Any) -> Any:
    """Return a value as `kind`, or None if it is something else."""
    if kind is bool or isinstance(raw, bool):
        return raw if kind is bool and isinstance(raw, bool) else None
    if kind is int:
        return int(raw) if isinstance(raw, Integral) and abs(int(raw)) < 2**63 else None
    if kind is float:
        number = raw if isinstance(raw, int) else float(raw) if isinstance(raw, Real) else math.nan
        return float(number) if abs(number) < 1e300 else None  # neither NaN nor infinite
    if kind is str:  # surrogates come from file names that are not UTF-8
        return raw if isinstance(raw, str) and not any("\ud800" <= c <= "\udfff" for c in raw) else None
    if not isinstance(raw, list | tuple):
        return None
    items = tuple(typed(item, kind.__args__[0]) for item in raw)
    return None if None in items else items


def show(value: Any) -> str:
    """Format a value for a message: on one line, shortened."""
    if isinstance(value, dict):
        return "a table"
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Combinations


NEEDS = {
    "schedule.steps": ("schedule.name", ("step", "step-released")),
    "schedule.factor": ("schedule.name", ("step", "step-released")),
    "optimizer.nesterov": ("optimizer.name", ("sgd",)),
}


def check_used(keys: Iterable[str], methods: Sequence[MethodSettings], sources: Mapping[str, str]) -> None:
    """Raise an error for a setting in [method] that none of the methods uses; `sources` are for messages.

    Args:
        keys: "section.key" or "stage.NAME.section.key".
        methods: settings of all stages.
    """
    known = {key for one in methods for key in used(one.name, one.first)}
    names = " and ".join(dict.fromkeys(one.name for one in methods))
    for name in keys:
        *_, section, key = name.split(".")
        if section == "method" and key not in known:
            having = [word for word in METHODS if key in METHODS[word].uses]
            hint = nearest(key, known - {"name"})
            with named(sources.get(name, "")):
                raise UserError(
                    f"{names} has no setting method.{key}{hint}",
                    f"it is a setting of {', '.join(having)}; `gpaco show {methods[-1].name}` lists those of a method",
                )


def check_effective(values: Mapping[str, Any], stages: Sequence[Recipe], sources: Mapping[str, str]) -> None:
    """Raise an error for a new value that has no effect: in none of its stages, another setting is as it needs it."""
    for name, value in values.items():
        *of, section, key = name.split(".")
        other, needed = NEEDS.get(f"{section}.{key}", ("", ()))
        if value and other:
            room, word = other.split(".")
            found = {getattr(getattr(stage, room), word) for stage in stages if not of or stage.name == of[1]}
            if not found & set(needed):
                with named(sources.get(name, "")):
                    whole = ".".join([*of, other])
                    raise UserError(
                        f"{name} needs {whole} = {show(needed[0])}", f"--set {whole}={needed[0]}, or leave it out"
                    )


def check_combinations(recipe: Recipe, stage: str, sources: dict[str, str] | None) -> None:
    """Raise an error if settings contradict each other; `sources` maps settings to their command-line options."""
    for is_wrong, name, message in _rules(recipe):
        if is_wrong:
            section, key = name.split(".")
            got = show(getattr(getattr(recipe, section), key)) + (f" in stage {stage!r}" if stage else "")
            with named((sources or {}).get(name, "")):
                raise UserError(
                    f"{name} {message}, got {got}", f"what it sets: {FIELDS[section][key].metadata['about']}"
                )


def _rules(recipe: Recipe) -> Iterator[tuple[bool, str, str]]:
    """Yield whether a rule is broken, the setting to blame, and what it must be."""
    data, model, scenes = recipe.data, recipe.model, recipe.segmentation
    crop, optimizer, schedule = recipe.views.crop_scale, recipe.optimizer, recipe.schedule
    too_far = any(stride > window for stride, window in zip(scenes.stride, scenes.window, strict=False))
    odd_pace = schedule.per != "epoch" or 0 < schedule.warmup < 1
    yield data.few > data.many, "data.few", "must not be above data.many"
    yield 0 < data.long_tail < 1, "data.long_tail", "must be 0 or at least 1"
    yield len(data.expect_groups) not in (0, 3), "data.expect_groups", "must have three numbers: many, medium, few"
    yield len(model.mean) not in (0, 3), "model.mean", "must have three numbers: red, green, blue"
    yield len(model.std) != len(model.mean), "model.std", "must have as many numbers as model.mean"
    yield 0 < model.resize < model.size, "model.resize", "must be 0 or at least model.size"
    yield len(crop) not in (0, 2) or _falls(crop), "views.crop_scale", "must be [smallest, largest]"
    for key in ("crop", "base_size", "window", "stride"):
        yield len(getattr(scenes, key)) not in (0, 2), f"segmentation.{key}", "must have two numbers"
    yield len(scenes.scale) != 2 or _falls(scenes.scale), "segmentation.scale", "must be [smallest, largest]"
    yield scenes.pixels == 0, "segmentation.pixels", "must be at least 1, or -1 for all"
    yield bool(scenes.stride) > bool(scenes.window), "segmentation.stride", "needs segmentation.window"
    yield too_far, "segmentation.stride", "must not be above segmentation.window"
    yield scenes.few > scenes.many, "segmentation.few", "must not be above segmentation.many"
    yield len(optimizer.betas) != 2, "optimizer.betas", "must have two numbers"
    no_momentum = optimizer.name == "sgd" and not optimizer.momentum
    yield optimizer.nesterov and no_momentum, "optimizer.nesterov", "needs optimizer.momentum above 0"
    warm = recipe.method.center_temperature and recipe.method.start == "balanced"
    yield warm, "method.center_temperature", 'needs method.start = "released"'
    yield -1 < recipe.method.norm_tau < 0, "method.norm_tau", "must be -1 or at least 0"
    yield _falls(schedule.steps), "schedule.steps", "must be increasing"
    yield schedule.min_lr > optimizer.lr, "schedule.min_lr", "must not be above optimizer.lr"
    yield (
        schedule.name == "step-released" and odd_pace,
        "schedule.name",
        'needs per = "epoch", and warmup 0 or at least 1',
    )
    yield not set(recipe.source.assumed) <= set(SETTINGS), "source.assumed", 'must name settings such as "method.alpha"'


def _falls(values: tuple[float, ...]) -> bool:
    return list(values) != sorted(values)
