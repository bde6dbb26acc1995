"""Reads, splits and checks the scenes of a recipe."""

from collections.abc import Sequence, Set
from pathlib import Path

import numpy as np

from gpaco.data.holdout import hold_back, repeated, stratified_split, with_val_as_test
from gpaco.data.inspection import INSPECTION_LIMIT, fingerprints, read_bad, without
from gpaco.data.samples import BadImage
from gpaco.errors import UserError
from gpaco.recipes.settings import Data, Recipe
from gpaco.system.progress import Progress, Say, as_progress, no_progress, quiet
from gpaco.system.words import plural, some
from gpaco.tasks.segmentation.inspection import color_problem, inspect, leaks, too_many, unusable
from gpaco.tasks.segmentation.readers.read import read_scenes
from gpaco.tasks.segmentation.scenes import SceneSplits
from gpaco.training.run import BAD_IMAGES, has_begun


def scene_splits(recipe: Recipe, say: Say = quiet, *, run: Path | None = None, shared: bool = False) -> SceneSplits:
    """Return the splits of a recipe, without the pairs that its `run` has left out.

    With `shared`, all processes call this, and if masks must be decoded to find the classes, each decodes its share.
    """
    if not recipe.data.path:
        raise UserError("there is no data to train on", "give a folder of images and masks")
    splits = read_scenes(recipe.data.path, as_progress(say, "reading classes from masks"), shared=shared)
    splits = with_parts(splits, recipe.data, as_progress(say, "looking for duplicates"))
    for note in (f"data: {splits.reader}", *splits.notes):
        say(note)
    return _without(splits, left_out(recipe, run) or ())


def left_out(recipe: Recipe, run: Path | None) -> list[BadImage] | None:
    """Return the pairs that a run has left out; None if they have not been checked yet."""
    if run is None or not has_begun(run):
        return None
    if recipe.data.on_bad_image == "error":
        return []
    return read_bad(run / BAD_IMAGES) if (run / BAD_IMAGES).is_file() else None


def with_parts(splits: SceneSplits, settings: Data, progress: Progress = no_progress) -> SceneSplits:
    """Return the splits that training needs; missing ones are held out from training images."""
    if settings.expect_images and len(splits.train) != settings.expect_images:
        raise UserError(
            f"the recipe expects {settings.expect_images:,} training images, got {len(splits.train):,}",
            "check the path of the data, or accept any: --set data.expect_images=0",
        )
    check_filled(splits)
    if settings.evaluate_on == "auto":
        splits = with_val_as_test(splits)
    no_test, no_val = splits.val is None and splits.test is None, splits.val is None and settings.validation > 0
    if no_test or no_val:
        images = splits.train.images
        prints = fingerprints(images, progress) if len(images) <= INSPECTION_LIMIT else None
        again = repeated(prints)
        copies = set() if again is None else {path for path, one in zip(images, again, strict=True) if one}
        if no_test:
            splits = _hold_back(splits, "test", 0.2, settings.seed, copies)
        if no_val:
            splits = _hold_back(splits, "val", settings.validation, settings.seed, copies)
    splits.check_reported(settings.evaluate_on)
    return splits


def check_filled(splits: SceneSplits) -> None:
    """Raise an error if a split is empty."""
    words = {"train": "training", "val": "validation", "test": "test"}
    for name, part in splits.parts():
        if not len(part):
            remedy = "remove the empty folder, or put" if name != "train" else "check the path, or put"
            raise UserError(f"there are no {words[name]} images", f"{remedy} images and masks there")


def _hold_back(splits: SceneSplits, name: str, share: float, seed: int, copies: Set[Path]) -> SceneSplits:
    """Return the splits with a seeded share of training images held back. All copies of an image stay in training."""
    total = len(splits.train)
    stay = np.array([path in copies for path in splits.train.images])
    _, held = stratified_split(np.zeros(total, np.int64), share, seed, stay=stay, smallest=2)
    if not len(held):
        remedy = ", or leave validation out: --validation 0" if name == "val" else ""
        raise UserError(
            f"{total} {'image is' if total == 1 else 'images are'} too few to hold some back for the "
            f"{name} split" + (", as duplicates stay together" if copies else ""),
            f"add images, or give the splits as folders{remedy}",
        )
    return hold_back(splits, name, held, f"{name}: {len(held)} of {total} training images held back, seed {seed}")


def inspected(splits: SceneSplits, recipe: Recipe, say: Say) -> SceneSplits:
    """Decode every pair, each process its share. Unusable pairs are an error or left out; leaks are an error."""
    skip = recipe.data.on_bad_image == "skip"
    if not skip and sum(len(part) for _, part in splits.parts()) > INSPECTION_LIMIT:
        say("too many files to inspect before training; `gpaco check --task segmentation` inspects all")
        return splits
    found = inspect(splits, as_progress(say, "checking images and masks"), shared=True)
    bad = unusable(splits, found)
    if bad and not skip:
        raise UserError(
            f"{len(bad)} pairs cannot be used, the first: {bad[0].reason}" if len(bad) > 1 else bad[0].reason,
            "fix it (`gpaco check --task segmentation` lists all), or leave such pairs out: --on-bad-image skip",
        )
    if excess := too_many(bad, splits):
        raise UserError(
            f"{len(bad)} pairs cannot be used, {excess}; the first: {bad[0].reason}",
            "fix or remove them; `gpaco check --task segmentation` lists them all",
        )
    same = leaks(splits, found)
    if same and not splits.published and not recipe.data.allow_leakage:
        raise UserError(
            f"more than one split has {plural(len(same), 'image')}, such as {some(same[0], 3)}",
            "keep only one of them, or allow it: --set data.allow_leakage=true",
        )
    if problem := color_problem(found["train"]):
        say(f"WARNING: {problem}")
    for one in bad:
        say(f"left out: {one.reason}")
    return _without(splits, bad)


def _without(splits: SceneSplits, bad: Sequence[BadImage]) -> SceneSplits:
    left = without(splits, bad)
    check_filled(left)
    return left
