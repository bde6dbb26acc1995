"""robustness(): how a run does on corrupted pictures, on those of published sets, and which classes suffer first."""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpaco.conditions import CLEAN, Pictures, Source, answers_under
from gpaco.corruption import CONSTANTS, VERSION
from gpaco.corruption_metrics import ALEXNET, ALEXNET_CLEAN, errors
from gpaco.data.class_maps import is_imagenet
from gpaco.data.shifted import Condition, Tree
from gpaco.data.splitting import stratified_subset
from gpaco.devices import choose_device
from gpaco.distortions import frost_folder
from gpaco.errors import UserError, nearest
from gpaco.evaluation import check_correction
from gpaco.files import append_jsonl, trim_jsonl, write_atomic
from gpaco.matching import Match, restricted
from gpaco.metrics import GROUPS, groups
from gpaco.priors import final_logits
from gpaco.progress import Say
from gpaco.run import Predictor, Run, as_run, load_classifier
from gpaco.stress_data import (
    clean_source,
    conditions_of,
    matched_classes,
    replace_about,
    severities_of,
    source_of,
    view_for,
)
from gpaco.stress_results import Bar, Measured, summary

PREPROCESSING = ("official", "paper")
_WORTH_WORKERS = 2000  # pictures; fewer are made before other processes have started


def robustness(
    run: Run | Path | str,
    data: Path | str | None = None,
    *,
    baseline: Path | str | None = None,
    clean: Path | str | None = None,
    corruptions: str | None = None,
    severities: str | None = None,
    subset: int | None = None,
    seed: int = 0,
    constants: str | None = None,
    preprocessing: str = "official",
    restrict: bool = False,
    prior: str | None = None,
    unbiased: bool = False,
    which: str = "best",
    on_bad_image: str = "error",
    workers: int | None = None,
    device: str | None = None,
    out: Path | str | None = None,
    say: Say = lambda line: None,
    bar: Bar | None = None,
) -> dict[str, Any]:
    """Errors of a run by corruption, severity and group, and their means (docs/robustness.md has every key).

    What is known from a run of the same command that was stopped is not computed again.

    Args:
        run: a run.
        data: any labelled images, to be corrupted here; or ImageNet-C, CIFAR-10-C or -100-C as published; or
            ImageNet-R, -A, -V2 or -Sketch, which are taken as they are. The run's own test data unless given.
        baseline: another run, or "alexnet" (ImageNet only), for `mce` and `relative_mce`.
        clean: the clean images of a published corrupted set.
        corruptions, severities: comma-separated; all unless given.
        subset: about so many images, with all classes in proportion, chosen by `seed`.
        seed: of the corruptions, picture by picture, and of the subset.
        constants: "imagenet" or "cifar"; by the size of the pictures unless given.
        preprocessing: "official", or "paper" (resize 256, crop 224 also where pictures have 224 pixels).
        restrict: let the model answer with the classes of the data only; ImageNet-R and -A always do.
        on_bad_image: "error", or "skip", which lists what it leaves out.
        out: folder for `robustness*.json` and `robustness.jsonl`; the run's unless given.
    """
    for value, known, what in (
        (preprocessing, PREPROCESSING, "preprocessing"),
        (on_bad_image, ("error", "skip"), "on_bad_image"),
        (constants, (None, *CONSTANTS), "a table of constants"),
    ):
        if value not in known:
            words = [word for word in known if word]
            raise UserError(f"{what} is {' or '.join(words)}, got {value!r}{nearest(str(value), words)}", "see --help")
    bar = bar or (lambda title: nullcontext(lambda done, total: None))
    wanted, processes = severities_of(severities), _workers(workers)
    run = as_run(run)
    where = choose_device(device)
    if run.recipe.train.task == "segmentation":
        from gpaco.segmentation.stress import scene_robustness

        if clean or restrict or prior or unbiased or workers or preprocessing != "official" or on_bad_image != "error":
            raise UserError(
                "of a segmenter, robustness takes no --clean, --restrict, --prior, --unbiased, --preprocessing, "
                "--on-bad-image or --workers",
                "leave them out",
            )
        return scene_robustness(
            run,
            data,
            baseline=baseline,
            corruptions=corruptions,
            severities=wanted,
            subset=subset,
            seed=seed,
            constants=constants,
            which=which,
            device=where,
            out=out,
            say=say,
            bar=bar,
        )
    predictor = load_classifier(run, which=which, device=where)
    check_correction(predictor, prior, unbiased)
    others = [] if baseline is None or str(baseline) == "alexnet" else [as_run(baseline)]
    with bar("looking through the folders") as show:
        source, stem = source_of(run, predictor, data, constants, seed, others=others, show=show, say=say)
    found = matched_classes(source, predictor.classes)
    notes = found.notes(predictor.classes)
    conditions = conditions_of(source, corruptions, wanted, notes)
    if isinstance(source, Pictures) and any(name == "frost" for name, _ in conditions):
        frost_folder()  # an error now rather than in the middle
    indices = found.known if subset is None else found.known[stratified_subset(found.labels[found.known], subset, seed)]
    restrict = restrict or source.reader in ("imagenet-r", "imagenet-a")

    folder = Path(out) if out is not None else run.folder
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "robustness.jsonl"
    jobs = [(source, conditions, found, indices)]
    if clean is not None:
        if isinstance(source, Pictures):
            raise UserError(f"the clean error of {source.reader} pictures is that of the data", "leave out --clean")
        jobs.append(clean_source(run, clean, predictor, subset, seed))
    other = _baseline(baseline, source, found, predictor, which, notes)
    say(
        f"{len(indices):,} pictures ({source.reader}), {sum(condition != CLEAN for condition in conditions)} conditions"
    )

    def measured(model: Predictor) -> Measured:
        """The errors of a model under every condition, from the log where they are there."""
        result = Measured({}, [])
        for pictures, wanted_here, matching, rows in jobs:
            own = replace_about(pictures, model)
            setup = _Setup(model, own, matching, rows, view_for(own, model, preprocessing), restrict, prior, unbiased)
            _measure(setup, wanted_here, log, result, on_bad_image == "skip", processes, bar, say)
        return result

    mine = measured(predictor)
    if isinstance(other, Predictor):
        say(f"the baseline, {baseline}:")
        alike = other.about["counts"] == predictor.about["counts"]
        other = replace(measured(other), name=str(baseline), by_group=alike)
    about = predictor.about
    sizes: dict[str, int | None] = dict.fromkeys(GROUPS)
    if about["counts"] is None:
        notes.append("the run does not know its class counts: no many, medium and few")
    else:
        group = groups(about["counts"], about["many"], about["few"])
        sizes = {name: int(((group == name) & found.there).sum()) for name in GROUPS}
    cuts = {"many": about["many"], "few": about["few"]}
    result = summary(mine, other, sizes, cuts, conditions, notes)
    result |= {
        "run": str(run.folder),
        "data": str(data) if data is not None else run.recipe.data.path,
        "set": source.reader,
        "n": len(indices),
        "subset": subset,
        "seed": seed,
        "constants": source.corrupting.constants if isinstance(source, Pictures) and source.corrupting else None,
        "preprocessing": preprocessing,
        "overlap": found.facts(restrict),
        "prior": prior,
        "unbiased": unbiased,
    }
    name = "robustness" + (f"-{stem}" if stem else "") + ".json"
    write_atomic(folder / name, json.dumps(result, indent=1))
    say(f"written: {folder / name}")
    return result


@dataclass(frozen=True, eq=False)
class _Setup:
    """Everything that an error depends on, beside the condition."""

    model: Predictor
    source: Source
    match: Match
    indices: NDArray[np.int64]
    view: dict[str, Any]
    restrict: bool
    prior: str | None
    unbiased: bool

    def answers(self, logits: NDArray[np.float32]) -> NDArray[np.int64]:
        logits = final_logits(logits, self.model.about, prior=self.prior, unbiased=self.unbiased)
        logits = restricted(logits, self.match.there) if self.restrict else logits
        if not np.isfinite(logits.max(1)).all():
            raise UserError(
                "the model gives logits that are not finite: nothing can be said about its predictions",
                "training has diverged: evaluate an older checkpoint",
            )
        return np.asarray(logits.argmax(1))

    def key(self, condition: Condition) -> str:
        """A digest of all of it: two results with the same key are the same."""
        words = [condition, self.source.fingerprint(condition)]
        return hashlib.sha256(self._common + json.dumps(words).encode()).hexdigest()

    @cached_property
    def _common(self) -> bytes:
        about, state = self.model.about, hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            state.update(name.encode())
            state.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        zeros = np.zeros((1, len(about["classes"])), np.float32)
        state.update(final_logits(zeros, about, prior=self.prior, unbiased=self.unbiased).tobytes())
        how = self.source.corrupting if isinstance(self.source, Pictures) else None
        words = [VERSION, self.source.reader, self.restrict, how and [how.constants, how.seed]]
        words += [[about[key] for key in ("classes", "counts", "mean", "std", "many", "few", "whole", "resize")]]
        words += [about["tuned"]]  # is neither in the weights nor in what `final_logits` adds
        words += [[self.view.get(key) for key in ("whole", "size", "resize", "interpolation")]]
        state.update(json.dumps(words).encode())
        for array in (self.indices, self.match.labels, self.match.there):
            state.update(array.tobytes())
        return state.digest()


def _measure(
    setup: _Setup,
    conditions: Sequence[Condition],
    log: Path,
    result: Measured,
    skip: bool,
    workers: int,
    bar: Bar,
    say: Say,
) -> None:
    """Add the errors under each condition to `result`: from the log, or computed and written there."""
    keys = {}
    with bar("looking at the files") as show:
        for condition in conditions:
            keys[condition] = setup.key(condition)
            show(len(keys), len(conditions))
    known = {row["key"]: row for row in trim_jsonl(log, lambda row: "key" in row) if skip or not row["skipped"]}
    rows = {condition: known[key] for condition, key in keys.items() if key in known}
    if rows and len(rows) < len(conditions):
        say(f"{len(rows)} conditions are known from before")
    missing = [condition for condition in conditions if condition not in rows]
    about, source = setup.model.about, setup.source
    few = len(missing) * len(setup.indices) < _WORTH_WORKERS
    with bar("robustness") as show:
        for condition, classes, bad in answers_under(
            setup.model,
            source,
            missing,
            setup.indices,
            setup.view,
            setup.answers,
            skip=skip,
            workers=0 if few else workers,
            show=show,
        ):
            good = classes >= 0
            labels = setup.match.labels[setup.indices][good]
            row = {
                "key": keys[condition],
                "condition": condition[0],
                "severity": condition[1],
                **errors(classes[good], labels, about["counts"], about["many"], about["few"]),
                "skipped": [[source.names[i], reason] for i, reason in bad],
            }
            if not good.any():
                raise UserError(f"not one picture under {condition[0]} {condition[1]} can be read", "look at the files")
            append_jsonl(log, row)
            rows[condition] = row
    for condition in conditions:
        result.rows[condition] = rows[condition]
        result.skipped.extend(
            f"{condition[0]} {condition[1]}: {name}: {reason}" for name, reason in rows[condition]["skipped"]
        )


def _baseline(
    baseline: Path | str | None,
    source: Source,
    found: Match,
    predictor: Predictor,
    which: str,
    notes: list[str],
) -> Measured | Predictor | None:
    """What to compare with: AlexNet's errors, a model that is still to be measured, or nothing."""
    if source.conditions == (CLEAN,):
        if baseline is not None:
            raise UserError(f"{source.reader} has no corruptions to compare", "leave out --baseline")
        return None
    imagenet = is_imagenet(predictor.classes)
    if baseline is None:
        if not (isinstance(source, Tree) and imagenet and not found.absent):
            notes.append("mce and relative_mce need a baseline: --baseline RUN")
            return None
        baseline = "alexnet"
    if str(baseline) == "alexnet":
        if not imagenet:
            raise UserError(
                "AlexNet's errors are known for the 1,000 classes of ImageNet only",
                "give a run of yours: --baseline RUN",
            )
        if not isinstance(source, Tree):
            notes.append("AlexNet's errors are of the published files of ImageNet-C, not of pictures corrupted here")
        return Measured.of_means("AlexNet", ALEXNET, ALEXNET_CLEAN)
    other = load_classifier(as_run(baseline), which=which, device=predictor.mean.device)
    if other.classes != predictor.classes:
        raise UserError(f"{baseline} does not have the same classes", "choose a baseline trained on the same classes")
    if other.about["size"] != predictor.about["size"]:
        notes.append(f"the baseline sees pictures of {other.about['size']} pixels, the run {predictor.about['size']}")
    if other.about["counts"] != predictor.about["counts"]:
        notes.append("the baseline was trained on other class counts: no mce by group")
    return other


def _workers(workers: int | None) -> int:
    if workers is not None:
        if workers < 0:
            raise UserError(f"{workers} processes cannot load images", "--workers 2, or 0 for none beside this one")
        return workers
    affinity = getattr(os, "sched_getaffinity", None)
    return min(len(affinity(0)) if affinity else os.cpu_count() or 1, 8)
