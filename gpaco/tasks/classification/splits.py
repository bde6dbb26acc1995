"""Reads, splits and checks the data of a recipe."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from gpaco.data.holdout import with_drawn, with_val_as_test
from gpaco.data.inspection import INSPECTION_LIMIT, TOLERATED, bad_images, find_bad, fingerprints, read_bad, without
from gpaco.data.leaks import refuse_leaks, refuse_one_class
from gpaco.data.longtail import long_tailed
from gpaco.data.readers.read import read
from gpaco.data.samples import BadImage, Splits, in_memory
from gpaco.errors import UserError
from gpaco.metrics.groups import GROUPS, groups
from gpaco.recipes.settings import Data, Recipe
from gpaco.system.progress import Say, as_progress, quiet
from gpaco.system.words import plural, some
from gpaco.training.run import BAD_IMAGES, SHARDS


def splits_of(recipe: Recipe, run: Path | None = None) -> Splits:
    """Return the splits of a recipe; see `read_splits` and `held_out`."""
    return held_out(read_splits(recipe, run=run), recipe, quiet, run=run)


def as_files(recipe: Recipe, run: Path) -> Recipe:
    """Return the recipe of a run for reading the same splits again without decoding any image."""
    on_bad_image = "skip" if (run / BAD_IMAGES).is_file() else "error"
    return replace(recipe, data=replace(recipe.data, in_memory=0, on_bad_image=on_bad_image))


def read_splits(recipe: Recipe, say: Say = quiet, run: Path | None = None) -> Splits:
    """Return the data with a test split, long-tailed if the recipe says so, before validation data is held out.

    The index of tar shards is stored in the folder of the run.
    """
    settings = recipe.data
    if not settings.path:
        raise UserError("there is no data to train on", "give a folder, a table, a list, or the word digits")
    splits = read(
        settings.path,
        root=settings.root or None,
        allow_empty_classes=settings.allow_empty_classes,
        allow_outside=settings.allow_outside,
        index=None if run is None else run / SHARDS,
    )
    refuse_one_class(splits)
    if empty := [name for name, count in zip(splits.classes, splits.train.counts, strict=True) if not count]:
        splits = splits.noting(f"kept without a training image: {some(empty)}")
    splits = with_reported(splits, settings, say)
    if settings.long_tail > 1:
        chosen = long_tailed(splits.train.labels, settings.long_tail, seed=settings.seed)
        splits = replace(splits, train=splits.train.subset(chosen))
    check_expected(splits, settings)  # before anything is held out or left out
    return splits


def with_reported(splits: Splits, settings: Data, say: Say = quiet) -> Splits:
    """Return the splits with one to report on: given, or drawn from the training images."""
    if splits.test is None and splits.val is None:
        return with_drawn(splits, "test", "test: none given;", 0.2, settings.seed, _repeated(splits, say))
    return with_val_as_test(splits) if settings.evaluate_on == "auto" else splits


def with_selecting(splits: Splits, settings: Data, say: Say = quiet) -> Splits:
    """Return the splits with validation data, unless the settings turn it off."""
    if not settings.validation or splits.val is not None:
        return splits
    return with_drawn(splits, "val", "validation:", settings.validation, settings.seed, _repeated(splits, say))


def held_out(splits: Splits, recipe: Recipe, say: Say, *, thorough: bool = False, run: Path | None = None) -> Splits:
    """Return the splits with validation data held out, checked, and in memory if they are small.

    Args:
        thorough: read every file, if there are at most INSPECTION_LIMIT, to find leaks between splits, and validation
            and test images that cannot be decoded, which would otherwise fail after the last epoch. All processes must
            call this together: each reads its share.
        run: folder of a run that has started; exactly the images on its list of unreadable ones are left out.
    """
    settings, small = recipe.data, _is_small(splits)
    splits = with_selecting(splits, settings, say)
    splits.check_reported(settings.evaluate_on)
    if settings.on_bad_image == "skip":
        splits = without_bad(splits, run, say, shared=thorough)
    if thorough and not small:
        say("too many files to inspect before training; `gpaco check` inspects all")
    if thorough and small and not settings.allow_leakage:
        splits = refuse_leaks(splits, progress=as_progress(say, "looking for leaks"))
    if thorough and small and settings.on_bad_image == "error":
        check_readable(splits, say)
    for note in (f"data: {splits.reader}", *splits.notes):
        say(note)
    return in_memory(splits, settings.in_memory, progress=as_progress(say, "reading images"))


def _is_small(splits: Splits) -> bool:
    return sum(len(part) for _, part in splits.parts()) <= INSPECTION_LIMIT


def _repeated(splits: Splits, say: Say) -> list[str] | None:
    """Return digests for keeping all copies of an image in training."""
    if not _is_small(splits) or splits.train.paths is None:
        return None
    return fingerprints(splits.train.paths, as_progress(say, "looking for duplicates"))


def other_data(path: Path | str, recipe: Recipe, root: Path | str | None = None) -> Splits:
    """Read other data to evaluate on, unchanged.

    Paths in a table or list are relative to `root`, or else to its own folder, or if nothing is there, to the recipe's
    root.
    """
    settings = recipe.data
    look = partial(read, path, allow_outside=settings.allow_outside, needs_training=False)
    try:
        splits = look(root=root)
    except UserError:
        if root is not None or not settings.root or not Path(path).is_file():
            raise
        splits = look(root=settings.root)
    return in_memory(splits, settings.in_memory)


def check_tuning(recipe: Recipe) -> None:
    """Raise an error if a prior would be tuned on the split to report on."""
    if recipe.data.evaluate_on == "val":
        raise UserError(
            "tuning a prior needs validation data, but this run reports on it",
            "leave out --tune-prior, or train with --set data.evaluate_on=test",
        )


def without_bad(splits: Splits, run: Path | None, say: Say, *, shared: bool) -> Splits:
    """Return the splits without unreadable images; in a run that has started, without those on its list."""
    if run is not None and (run / BAD_IMAGES).is_file():
        return without_unreadable(splits, read_bad(run / BAD_IMAGES), limit=1)
    bad = bad_images(splits, as_progress(say, "looking for unreadable images"), shared=shared)
    splits = without_unreadable(splits, bad)
    for one in splits.bad:
        say(f"left out: {one.name}: {one.reason}")
    return splits


def without_unreadable(splits: Splits, bad: Sequence[BadImage], *, limit: float = TOLERATED) -> Splits:
    """Return the splits without the unreadable images.

    They are gone for the whole run, so that counts and prior match the remaining images. It is an error if more than
    one image and more than `limit` of all are bad, or if a class loses its last training image.
    """
    total = sum(len(part) for _, part in splits.parts())
    if not bad:
        return splits
    if len(bad) > max(limit * total, 1):
        raise UserError(
            f"{len(bad)} of {total} images are unreadable, more than {limit:.1%}: "
            f"{some([f'{one.name}: {one.reason}' for one in bad], 3)}",
            "repair or remove them; gpaco check lists them all",
        )
    left = without(splits, bad)
    lost = np.flatnonzero((splits.train.counts > 0) & (left.train.counts == 0))
    if len(lost):
        names = [splits.classes[c] for c in lost]
        raise UserError(f"all training images of {some(names)} are unreadable", "repair them, or remove the class")
    left = replace(left, val=left.val or None, test=left.test or None)
    return left.noting(f"left out: {plural(len(bad), 'unreadable image')} of {total}")


def check_readable(splits: Splits, say: Say) -> None:
    """Raise an error if a validation or test image cannot be decoded."""
    for name, part in (("validation", splits.val), ("test", splits.test)):
        bad = [] if part is None else find_bad(part, as_progress(say, f"checking {name} images"), shared=True)
        if part is not None and bad:
            index, reason = bad[0]
            raise UserError(
                f"{len(bad)} images in {name} cannot be read; the first is {part.names[index]}: {reason}",
                "fix or remove them (gpaco check lists all), or leave them out: --on-bad-image skip",
            )


def check_expected(splits: Splits, settings: Data) -> None:
    """Raise an error if the data is not what the recipe expects."""
    images, remedy = len(splits.train), "check the path of the data, or accept any:"
    if settings.expect_images and images != settings.expect_images:
        raise UserError(
            f"the recipe expects {settings.expect_images:,} training images, got {images:,}",
            f"{remedy} --set data.expect_images=0",
        )
    if settings.expect_groups:
        group = groups(splits.train.counts, settings.many, settings.few)
        found = tuple(int((group == name).sum()) for name in GROUPS)
        if found != settings.expect_groups:
            raise UserError(
                f"the recipe expects {settings.expect_groups} many, medium and few classes, got {found}",
                f"{remedy} --set data.expect_groups=[]",
            )
