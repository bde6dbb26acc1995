"""From what was asked for to scenes and a complete recipe: what is read, held back, left out and guessed."""

from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpaco.data.holdout import hold_back, repeated, stratified_split, with_val_as_test
from gpaco.data.inspection import LOOKED_AT, TOLERATED, fingerprints, read_bad, too_many
from gpaco.data.samples import BadImage
from gpaco.errors import UserError
from gpaco.recipes.settings import Data, Recipe
from gpaco.system.progress import Progress, Say, told
from gpaco.system.words import some
from gpaco.tasks.segmentation.readers.read import read_scenes
from gpaco.tasks.segmentation.scenes import Scenes, SceneSplits
from gpaco.training.run import BAD_IMAGES, has_begun


def scene_splits(recipe: Recipe, say: Say = lambda line: None, *, run: Path | None = None) -> SceneSplits:
    """The parts that a recipe asks for; those of a `run` without the pairs that it has left out."""
    if not recipe.data.path:
        raise UserError("there is no data to train on", "give a folder of pictures and masks")
    splits = read_scenes(recipe.data.path, told(say, "looking at masks for their classes"))
    splits = with_parts(splits, recipe.data, told(say, "looking for copies"))
    for note in (f"data: {splits.reader}", *splits.notes):
        say(note)
    return without(splits, left_out(recipe, run) or ())


def left_out(recipe: Recipe, run: Path | None) -> list[BadImage] | None:
    """The pairs that a run goes without; None if it has not looked at them yet."""
    if run is None or not has_begun(run):
        return None
    if recipe.data.on_bad_image == "error":
        return []
    return read_bad(run / BAD_IMAGES) if (run / BAD_IMAGES).is_file() else None


def with_parts(splits: SceneSplits, settings: Data, progress: Progress | None = None) -> SceneSplits:
    """The same with the parts that training needs: some pictures are held back where they are missing."""
    if settings.expect_images and len(splits.train) != settings.expect_images:
        raise UserError(
            f"the recipe expects {settings.expect_images:,} training pictures, here are {len(splits.train):,}",
            "check that it is the right data, or change what the recipe expects: --set data.expect_images=0",
        )
    check_filled(splits)
    if settings.evaluate_on != "val":
        splits = with_val_as_test(splits)
    no_test, no_val = splits.val is None and splits.test is None, splits.val is None and settings.validation > 0
    if not no_test and not no_val:
        return splits
    images = splits.train.images
    prints = fingerprints(images, progress) if len(images) <= LOOKED_AT else None
    again = repeated(prints)
    copies = set() if again is None else {path for path, one in zip(images, again, strict=True) if one}
    if no_test:
        splits = _hold_back(splits, "test", 0.2, settings.seed, copies)
    if no_val:
        splits = _hold_back(splits, "val", settings.validation, settings.seed, copies)
    return splits


def reported(recipe: Recipe, splits: SceneSplits) -> tuple[str, Scenes | None]:
    """The split that the final metrics are of, which selects nothing: its name and scenes."""
    return ("val", splits.val) if recipe.data.evaluate_on == "val" else ("test", splits.test)


def check_filled(splits: SceneSplits) -> None:
    """Raise where a part has no picture: it would be trained, chosen or measured with nothing."""
    words = {"train": "training", "val": "validation", "test": "test"}
    for name, part in splits.parts():
        if not len(part):
            remedy = "take the empty folder away, or put" if name != "train" else "check the path, or put"
            raise UserError(f"there are no {words[name]} pictures", f"{remedy} pictures and masks there")


def _hold_back(splits: SceneSplits, name: str, share: float, seed: int, copies: Set[Path]) -> SceneSplits:
    """Return the splits with a seeded share of training held back. Copies of an image all stay in training."""
    total = len(splits.train)
    stay = np.array([path in copies for path in splits.train.images])
    _, held = stratified_split(np.zeros(total, np.int64), share, seed, stay=stay, smallest=2)
    if not len(held):
        remedy = ", or leave validation out: --validation 0" if name == "val" else ""
        raise UserError(
            f"{total} {'image is' if total == 1 else 'images are'} too few to hold some back for the "
            f"{name} split" + (", as copies stay together" if copies else ""),
            f"add images, or give the splits as folders{remedy}",
        )
    return hold_back(splits, name, held, f"{name}: {len(held)} of {total} training images held back, seed {seed}")


def inspected(splits: SceneSplits, recipe: Recipe, say: Say) -> SceneSplits:
    """The same after every pair was decoded once: bad ones are an error, or left out; so are leaks between parts."""
    from gpaco.tasks.segmentation.check import inspect, leaks

    skip = recipe.data.on_bad_image == "skip"
    if not skip and sum(len(part) for _, part in splits.parts()) > LOOKED_AT:
        say("too many files to look at each before training; `gpaco check --task segmentation` does")
        return splits
    found = inspect(splits, told(say, "looking at pictures and masks"))
    parts = dict(splits.parts())
    bad = [
        BadImage(name, parts[name].names[i], str(one.reason))
        for name, part in found.items()
        for i, one in enumerate(part)
        if one.reason is not None
    ]
    if bad and not skip:
        raise UserError(
            f"{len(bad)} pairs cannot be used, the first: {bad[0].reason}" if len(bad) > 1 else bad[0].reason,
            "mend it (`gpaco check --task segmentation` lists all), or leave such pairs out: --on-bad-image skip",
        )
    total = sum(map(len, parts.values()))
    if too_many(len(bad), total):
        raise UserError(
            f"{len(bad)} of {total} pairs cannot be used, more than {TOLERATED:.1%}; the first: {bad[0].reason}",
            "mend or remove them; `gpaco check --task segmentation` lists them all",
        )
    same = leaks(splits, found)
    if same and not splits.published and not recipe.data.allow_leakage:
        raise UserError(
            f"{len(same)} pictures are in more than one part, the first: {some(same[0], 3)}",
            "take all of them but one out, or allow it: --set data.allow_leakage=true",
        )
    for one in bad:
        say(f"left out: {one.reason}")
    return without(splits, bad)


def without(splits: SceneSplits, bad: Sequence[BadImage]) -> SceneSplits:
    """The same without these pairs. Those that are gone do no harm."""
    gone = {(one.split, one.name) for one in bad}
    parts: dict[str, Any] = {
        name: part.subset([i for i, own in enumerate(part.names) if (name, own) not in gone])
        for name, part in splits.parts()
    }
    left = replace(splits, bad=tuple(bad), **parts)
    check_filled(left)
    return left
