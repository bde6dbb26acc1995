"""From what was asked for to scenes and a complete recipe: what is read, held back, left out and guessed."""

from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpaco.data.counter_random import permutation
from gpaco.data.holdout import repeated
from gpaco.data.inspection import LOOKED_AT, fingerprints, read_bad
from gpaco.data.samples import BadImage, some
from gpaco.errors import UserError
from gpaco.recipes.settings import Data, Recipe
from gpaco.system.progress import Progress, Say, told
from gpaco.tasks.reported import check_reported
from gpaco.tasks.segmentation.inspection import inspect, leaks, too_many, unusable
from gpaco.tasks.segmentation.readers.read import read_scenes
from gpaco.tasks.segmentation.scenes import SceneSplits
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
    if splits.test is None and splits.val is not None and settings.evaluate_on == "auto":
        note = "test: none given; the validation part is reported in its place, so it chooses nothing"
        splits = replace(splits, val=None, test=splits.val, notes=(*splits.notes, note))
    no_test, no_val = splits.val is None and splits.test is None, splits.val is None and settings.validation > 0
    if no_test or no_val:
        images = splits.train.images
        prints = fingerprints(images, progress) if len(images) <= LOOKED_AT else None
        again = repeated(prints)
        copies = set() if again is None else {path for path, one in zip(images, again, strict=True) if one}
        if no_test:
            splits = _hold_back(splits, "test", 0.2, settings.seed, copies)
        if no_val:
            splits = _hold_back(splits, "val", settings.validation, settings.seed, copies)
    check_reported(splits, settings)
    return splits


def check_filled(splits: SceneSplits) -> None:
    """Raise where a part has no picture: it would be trained, chosen or measured with nothing."""
    words = {"train": "training", "val": "validation", "test": "test"}
    for name, part in splits.parts():
        if not len(part):
            remedy = "take the empty folder away, or put" if name != "train" else "check the path, or put"
            raise UserError(f"there are no {words[name]} pictures", f"{remedy} pictures and masks there")


def _hold_back(splits: SceneSplits, name: str, share: float, seed: int, copies: Set[Path]) -> SceneSplits:
    """The same with a seeded part of training taken out of it. Copies of a picture all stay in training."""
    order = permutation(seed, 0, len(splits.train))
    held = [i for i in order if splits.train.images[i] not in copies][: max(1, round(share * len(order)))]
    if not held or len(held) == len(order):
        remedy = ", or leave validation out: --validation 0" if name == "val" else ""
        raise UserError(
            f"{len(order)} {'picture is' if len(order) == 1 else 'pictures are'} too few to hold some back for the "
            f"{name} part" + (", as copies stay together" if copies else ""),
            f"add pictures, or give the parts as folders{remedy}",
        )
    kept = np.setdiff1d(order, held)
    note = f"{name}: {len(held)} of {len(order)} training pictures held back, seed {seed}"
    parts: dict[str, Any] = {name: splits.train.subset(np.sort(held)), "train": splits.train.subset(kept)}
    return replace(splits, notes=(*splits.notes, note), held=(*splits.held, name), **parts)


def inspected(splits: SceneSplits, recipe: Recipe, say: Say) -> SceneSplits:
    """The same after every pair was decoded once: bad ones are an error, or left out; so are leaks between parts."""
    skip = recipe.data.on_bad_image == "skip"
    if not skip and sum(len(part) for _, part in splits.parts()) > LOOKED_AT:
        say("too many files to look at each before training; `gpaco check --task segmentation` does")
        return splits
    found = inspect(splits, told(say, "looking at pictures and masks"))
    bad = unusable(splits, found)
    if bad and not skip:
        raise UserError(
            f"{len(bad)} pairs cannot be used, the first: {bad[0].reason}" if len(bad) > 1 else bad[0].reason,
            "mend it (`gpaco check --task segmentation` lists all), or leave such pairs out: --on-bad-image skip",
        )
    if excess := too_many(bad, splits):
        raise UserError(
            f"{len(bad)} pairs cannot be used, {excess}; the first: {bad[0].reason}",
            "fix or remove them; `gpaco check --task segmentation` lists them all",
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
