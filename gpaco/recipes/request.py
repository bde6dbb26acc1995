"""The recipe that a user requests on the command line or in Python."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpaco.errors import UserError, nearest
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import METHODS, TWO_STAGES, MethodSettings, Recipe, Stage, used
from gpaco.recipes.validation import SETTINGS
from gpaco.system.words import printable

# Keyword arguments of train(), with the setting that each changes; all but two are options of `gpaco train`.
FLAGS = {
    "root": "data.root",
    "task": "train.task",
    "method": "method.name",
    "model": "model.name",
    "weights": "model.weights",
    "size": "model.size",
    "epochs": "train.epochs",
    "batch_size": "train.batch_size",
    "lr": "optimizer.lr",
    "seed": "train.seed",
    "long_tail": "data.long_tail",
    "validation": "data.validation",
    "sampler": "train.sampler",
    "train": "train.part",
    "amp": "train.amp",
    "workers": "train.workers",
    "on_bad_image": "data.on_bad_image",
    "tune": "train.tune",
    "tune_prior": "method.tune_prior",
    "report": "train.report",
    "log": "train.log",
}
_NO_OPTIONS = ("sampler", "report")


def overrides(key: str, value: Any = "") -> str:
    """Return the command-line words that set "section.key", with or without a value.

    >>> overrides("train.epochs", 3), overrides("train.sampler", "sqrt"), overrides("train.epochs")
    ('--epochs 3', '--set train.sampler=sqrt', '--epochs')
    """
    options = {setting: f"--{flag.replace('_', '-')} " for flag, setting in FLAGS.items() if flag not in _NO_OPTIONS}
    return f"{options.get(key, f'--set {key}=')}{value}".rstrip()


def requested(
    what: Path | str | Recipe,
    recipe: Path | str | Recipe | None,
    settings: Sequence[str],
    flags: dict[str, Any],
    *,
    paper: bool = False,
) -> tuple[Recipe, set[str]]:
    """Return the requested recipe, and the names of the settings that the user chose.

    `what` is the data, or a recipe that names its data.
    """
    check_is_list("settings", settings)
    path = ""
    if isinstance(what, Recipe) and recipe is not None:
        raise UserError("two recipes were given", "leave out recipe=, or give data instead of the first")
    if isinstance(what, Recipe) or (recipe is None and Path(what).suffix == ".toml"):
        recipe = what
    else:
        path = str(what) if str(what) in ("", "digits") else _absolute(what)
    if recipe is not None and not isinstance(recipe, Recipe):
        base = recipes.load(recipe, paper=paper)
    elif paper:
        raise UserError("--paper needs a recipe of the package", "name it: --recipe NAME --paper")
    else:
        base = recipe or Recipe()
    values, sources = _from_flags(flags)
    more, more_sources = recipes.parse(settings)
    values, sources = values | more, sources | more_sources
    chosen = set(values) | set(SETTINGS if recipe is not None else ())
    if path and "data.path" in values:
        raise UserError(f"two data sets were given: {what} and --set data.path", "leave out one of them")
    if path:
        if not path.isascii() and printable(path) != path:
            raise UserError(
                f"the name {printable(path)!r} is not UTF-8, so it cannot be in a recipe", "rename the folder"
            )
        values["data.path"] = path
    changed = recipes.change(_with_stages(base, values), values, sources)
    changed = _without_leftovers(changed)
    if changed.data.path not in ("", "digits"):
        changed = replace(changed, data=replace(changed.data, path=_absolute(changed.data.path)))
    if changed.data.root:
        changed = replace(changed, data=replace(changed.data, root=_absolute(changed.data.root)))
    weights = Path(changed.model.weights)
    if weights.suffix and weights.is_file():
        changed = replace(changed, model=replace(changed.model, weights=_absolute(weights)))
    return changed, chosen


def _with_stages(recipe: Recipe, values: dict[str, Any]) -> Recipe:
    """Return the recipe with empty stages, as its method will have, if the values change one of them."""
    if recipe.stage or not any(key.startswith("stage.") for key in values):
        return recipe
    name, first = (values.get(f"method.{key}", getattr(recipe.method, key)) for key in ("name", "first"))
    if name not in (*TWO_STAGES, "supcon"):
        return recipe
    own = ("classifier",) if name in TWO_STAGES and first not in METHODS else ("features", "classifier")
    return replace(recipe, stage=tuple(map(Stage, own)))


def _without_leftovers(recipe: Recipe) -> Recipe:
    """Return the recipe without settings of another method: those in [method] that none of its stages uses."""
    kept = {key for one in recipes.stages(recipe) for key in used(one.method.name, one.method.first)}
    return replace(recipe, method=MethodSettings(**{key: getattr(recipe.method, key) for key in kept}))


def check_is_list(name: str, words: Sequence[str]) -> None:
    """Raise an error for a string instead of a list, since Python would iterate over its letters."""
    if isinstance(words, str):
        raise UserError(f"{name} must be a list of strings, got one string, {words!r}", f"{name}=[{words!r}]")


def _from_flags(flags: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values and command-line options, both by setting."""
    if unknown := sorted(set(flags) - set(FLAGS)):
        raise UserError(
            f"there is no option {unknown[0]!r}{nearest(unknown[0], FLAGS)}", f"options are {', '.join(FLAGS)}"
        )
    given = {FLAGS[flag]: value for flag, value in flags.items() if value is not None}
    values = {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}
    return values, {key: overrides(key, value) for key, value in given.items()}


def _absolute(path: Path | str) -> str:
    """Return the absolute path without "..", so that the run can be used and resumed from any folder."""
    return os.path.abspath(os.path.expanduser(path))
