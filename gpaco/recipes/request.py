"""What was asked for on the command line or in Python: a recipe, and changes to it."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpaco.errors import UserError, nearest
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import SECTIONS, Recipe
from gpaco.system.words import printable

# Flags of the command line and keyword arguments of train(): the setting each stands for.
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
    "ghost_batch": "model.ghost_batch",
    "on_bad_image": "data.on_bad_image",
    "compile": "train.compile",
    "tune_prior": "method.tune_prior",
    "report": "train.report",
}


def overrides(key: str) -> str:
    """What of the command line sets "section.key"."""
    short = {value: f"--{flag.replace('_', '-')}" for flag, value in FLAGS.items()}
    return short.get(key, f"--set {key}=")


def requested(
    what: Path | str | Recipe,
    recipe: Path | str | Recipe | None,
    settings: Sequence[str],
    flags: dict[str, Any],
    *,
    paper: bool = False,
) -> tuple[Recipe, set[str]]:
    """The recipe as asked for, and which of its settings somebody has chosen."""
    refuse_one_word("settings", settings)
    path = ""
    if isinstance(what, Recipe) or (recipe is None and Path(what).suffix == ".toml"):
        recipe = what
    else:
        path = str(what) if str(what) in ("", "digits") else _from_anywhere(what)
    if printable(path) != path:
        raise UserError(f"the name {printable(path)!r} is not UTF-8, so no recipe can hold it", "rename or link it")
    base = _loaded(recipe, paper)
    given = set() if recipe is None else {f"{s}.{k}" for s in SECTIONS for k in asdict(getattr(base, s))}
    values, shown = _flagged(flags)
    more, also_shown = recipes.parse(settings)
    values, shown = values | more, shown | also_shown
    if path and "data.path" in values:
        raise UserError(f"there are two sets of data, {what} and that of --set data.path", "leave out one of them")
    if path:
        base = replace(base, data=replace(base.data, path=path))
    changed = recipes.change(base, values, shown)
    if changed.data.root:
        changed = replace(changed, data=replace(changed.data, root=_from_anywhere(changed.data.root)))
    return changed, given | set(values)


def _loaded(recipe: Path | str | Recipe | None, paper: bool) -> Recipe:
    if recipe is not None and not isinstance(recipe, Recipe):
        return recipes.load(recipe, paper=paper)
    if paper:
        raise UserError("--paper is about a recipe of the package", "name it: --recipe NAME --paper")
    return recipe or Recipe()


def _flagged(flags: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of flags by the names of their settings, and the flags as they were typed."""
    if unknown := sorted(set(flags) - set(FLAGS)):
        raise UserError(
            f"there is no option {unknown[0]!r}{nearest(unknown[0], FLAGS)}", f"options are {', '.join(FLAGS)}"
        )
    typed = {FLAGS[flag]: value for flag, value in flags.items() if value is not None}
    shown = {key: f"{overrides(key)} {value}" for key, value in typed.items()}
    return {key: str(value) if isinstance(value, Path) else value for key, value in typed.items()}, shown


def refuse_one_word(name: str, words: Sequence[str]) -> None:
    """Raise where a list of words is asked for and one word came, which Python would take letter by letter."""
    if isinstance(words, str):
        raise UserError(f"{name} are a list of words, got one word, {words!r}", f"{name}=[{words!r}]")


def _from_anywhere(path: Path | str) -> str:
    """The path as it holds in any folder: a run may be looked at from another one."""
    return str(Path(path).expanduser().absolute())
