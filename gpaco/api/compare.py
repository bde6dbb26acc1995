"""compare(): several methods and seeds in one table. Every cell is a run folder; the same call resumes."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpaco.api.latency import measure_run, stored
from gpaco.api.report import report
from gpaco.api.train import train
from gpaco.errors import UserError, nearest
from gpaco.methods import METHODS, UNTRAINED
from gpaco.recipes import recipe as recipes
from gpaco.recipes.request import FLAGS, check_is_list, requested
from gpaco.recipes.settings import MethodSettings, used
from gpaco.system import distributed
from gpaco.system.files import write_atomic
from gpaco.system.outputs import labeled_places, mark_folder, output_folder
from gpaco.system.progress import Say, Show, muted, quiet
from gpaco.tasks.classification.splits import read_splits
from gpaco.training.run import Run, no_test_images

FUSED = "fused"
MARK = ".gpaco-compare"
COLUMNS = {"top1": "all", "many": "many", "medium": "medium", "few": "few", "macro": "macro", "ece": "ECE"}


def compare(
    data: Path | str,
    methods: Sequence[str],
    *,
    seeds: int = 3,
    out: Path | str,
    settings: Sequence[str] = (),
    say: Say = print,
    details: Say | None = None,
    show: Show | None = None,
    **flags: Any,
) -> dict[str, Any]:
    """Train every method with every seed and compare them: {"rows": [{"method", "top1": {"mean", "interval"}, ...}]}.

    A method can have its own settings: "gpaco+prior=counts+start=released". `settings` are for all methods, those in
    [method] for the methods that have them. Other settings are chosen for each method: one that cannot train a head
    alone trains all layers, and holds out images for validation. "trains" says what each one trained.
    Heads on cached features are compared without the closed-form classifier; "fused" is their accuracy with it.
    `report.html` in the same folder covers the first seed of each method. With several processes, single runs get no
    page, and the page of the comparison has no analysis of training steps.

    >>> options = {"seeds": 1, "epochs": 1, "say": lambda line: None}
    >>> found = compare("digits", ["ce", "gpaco+prior=counts"], out="runs/compared", **options)
    >>> [row["method"] for row in found["rows"]]
    ['ce', 'gpaco+prior=counts']
    """
    parsed = parse_all(methods, settings, seeds, flags)
    folder = output_folder(out, MARK, data=labeled_places(data, flags.get("root")))
    short = {key: value for key, value in flags.items() if key in FLAGS}
    shared = shared_settings(settings, [(name, own) for _, name, own in parsed])
    for _, name, own in parsed:  # find an error in the last method before the first one trains
        own[:0] = shared(name, own)
        recipe, given = requested(data, flags.get("recipe"), own, short | {"method": name})
        if recipe.train.task != "classification":
            raise UserError("compare trains classifiers", "train segmenters one by one, then `gpaco report RUN RUN`")
        if recipe.train.part in ("auto", "head") and "train.features" not in given:
            own.append(f"train.features={folder / 'features'}")  # images are embedded once for all cells
        if "method.fuse" not in given:
            own.append("method.fuse=false")
    if recipe.data.evaluate_on != "val" and read_splits(recipe).reported("test")[1] is None:  # val is held out later
        raise no_test_images("a comparison on this data")
    mark_folder(folder, MARK)
    distributed.start(distributed.choose_device(flags.get("device")), recipe.train.timeout)
    if distributed.world_size() > 1:
        flags["report"] = False
    rows: list[dict[str, Any]] = []
    for word, name, own in parsed:
        runs: list[Run] = []
        for seed in range(seeds):
            if show is None:
                say(f"{word}, seed {seed}")
            else:
                show({"title": f"{word}, seed {seed}"})
            cell = folder / re.sub(r"[^\w.+-]+", "-", word).strip("-") / f"seed-{seed}"
            tell = (details or say) if not rows and not runs else muted(say)  # nearly the same lines
            run = train(data, out=cell, method=name, seed=seed, settings=own, say=tell, show=show or quiet, **flags)
            runs.append(run)
            distributed.barrier()  # no process may read files that the first has not written yet
        metrics = {key: interval([run.metrics[key] for run in runs]) for key in COLUMNS}
        if sums := [run.metrics["parts"][FUSED]["top1"] for run in runs if FUSED in (run.metrics.get("parts") or {})]:
            metrics[FUSED] = interval(sums)
        row = {"method": word, **metrics, "trains": trained(runs[0]), "runs": [str(run.folder) for run in runs]}
        if distributed.rank() == 0:  # a second is enough for a column; `gpaco latency` measures longer
            where, tell = flags.get("device"), details or say
            known = [other["latency"] for other in rows]
            row["latency"] = stored(runs[0], where) or measure_run(runs[0], where, 0.5, known, tell)
        rows.append(row)
    result = {"data": str(data), "seeds": seeds, "rows": rows}
    if distributed.rank() == 0:
        write_atomic(folder / "comparison.json", json.dumps(result, indent=1))
        write_atomic(folder / "comparison.md", table(result) + "\n")
        firsts = [row["runs"][0] for row in rows]
        report(firsts, folder / "report.html", names=[row["method"] for row in rows])
    return result


def trained(run: Run) -> str:
    """Return what a run trained, stage by stage, and on how many images."""
    stages = recipes.stages(run.recipe)
    parts = list(dict.fromkeys("nothing" if one.method.name in UNTRAINED else one.train.part for one in stages))
    return f"{', then '.join(parts)} of {stages[-1].model.name}, {sum(run.metrics['counts']):,} images"


def shared_settings(
    settings: Sequence[str], methods: Sequence[tuple[str, list[str]]]
) -> Callable[[str, list[str]], list[str]]:
    """Return a function that selects the settings a method has; raise an error for a setting that no method has."""

    def keys(name: str, own: list[str]) -> set[str]:
        firsts = [one.partition("=")[2] for one in (*settings, *own) if one.startswith("method.first=")]
        return {f"method.{key}" for key in used(name, firsts[-1] if firsts else MethodSettings.first)}

    def of(name: str, own: list[str]) -> list[str]:
        mine = keys(name, own)
        return [one for one in settings if not one.startswith("method.") or one.partition("=")[0].strip() in mine]

    every = set[str]().union(*(keys(name, own) for name, own in methods))
    lost = [one for one in settings if one.startswith("method.") and one.partition("=")[0].strip() not in every]
    for one in lost:
        requested("", None, [one], {"method": methods[0][0]})  # raises the error
    return of


def split_methods(words: str) -> list[str]:
    """Split methods at commas, except inside the brackets of a list.

    >>> split_methods("ce, gpaco+schedule.steps=[10,20]")
    ['ce', 'gpaco+schedule.steps=[10,20]']
    """
    return [word.strip() for word in re.split(r",(?![^\[]*\])", words)]


def parse_all(
    methods: Sequence[str], settings: Sequence[str], seeds: int, flags: Mapping[str, Any]
) -> list[tuple[str, str, list[str]]]:
    """Return each method as `parse` does, or raise an error if they cannot be compared."""
    check_is_list("methods", methods)
    check_is_list("settings", settings)
    if not methods:
        raise UserError("no method is given", "for example methods=['ce', 'gpaco']")
    if twice := [word for word in methods if list(methods).count(word) > 1]:
        raise UserError(f"the method {twice[0]!r} is given twice", "name each method once; --seeds repeats them")
    if seeds < 1:
        raise UserError(f"seeds must be at least 1, got {seeds}", "--seeds 3 gives a mean with its interval")
    parsed = [parse(method) for method in methods]
    changed = {one.partition("=")[0].strip() for one in [*settings, *(one for *_, own in parsed for one in own)]}
    for key, instead in {"train.seed": "--seeds N", "method.name": "--methods A,B"}.items():
        if key in changed | {FLAGS.get(flag) for flag in flags}:
            raise UserError(f"compare sets {key} for each run", f"use {instead} instead")
    return parsed


def parse(word: str) -> tuple[str, str, list[str]]:
    """Return a method and its own settings: "gpaco+prior=counts" -> (word, "gpaco", ["method.prior=counts"])."""
    name, *own = re.split(r"\+(?=[\w.]+=)", word)
    if name not in METHODS:
        raise UserError(f"there is no method {name!r}{nearest(name, METHODS)}", f"methods are {', '.join(METHODS)}")
    return word, name, [setting if "." in setting.split("=")[0] else f"method.{setting}" for setting in own]


def interval(values: Sequence[float | None]) -> dict[str, Any]:
    """Return the mean and half of its 95% interval by Student's t; None if a value is missing.

    >>> interval([0.5, 0.6, 0.7])["mean"], round(interval([0.5, 0.6, 0.7])["interval"], 4)
    (0.6, 0.2484)
    """
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or not numbers:
        return {"mean": None, "interval": None, "values": list(values)}
    mean = float(np.mean(numbers))
    half = None
    if len(numbers) > 1:
        from scipy.stats import t

        point = float(t.ppf(0.975, len(numbers) - 1))
        half = point * float(np.std(numbers, ddof=1)) / math.sqrt(len(numbers))
    return {"mean": round(mean, 12), "interval": half, "values": numbers}


def table(result: dict[str, Any]) -> str:
    """Return the comparison as a Markdown table, in percent, with milliseconds per image in a batch of 64."""
    seeds = result["seeds"]
    fused = {FUSED: FUSED} if any(FUSED in row for row in result["rows"]) else {}
    columns = COLUMNS | fused
    differ = len({row.get("trains") for row in result["rows"]}) > 1
    titles = [*columns.values(), "ms", *(["trains"] if differ else [])]
    found = [["method", *titles]]
    for row in result["rows"]:
        cells = []
        for key in columns:
            mean, half = (row[key]["mean"], row[key]["interval"]) if key in row else (None, None)
            text = "none" if mean is None else f"{100 * mean:.1f}"
            cells.append(text + ("" if half is None else f" ± {100 * half:.1f}"))
        time = row["latency"]["batches"]["64"] if "latency" in row else None
        cells.append("none" if time is None else f"{time['median']:.2f}")
        cells += [row["trains"]] if differ else []
        found.append([row["method"], *cells])
    wide = [max(map(len, column)) for column in zip(*found, strict=True)]
    lines = [" | ".join(text.ljust(width) for text, width in zip(cells, wide, strict=True)) for cells in found]
    lines.insert(1, " | ".join("-" * width for width in wide))
    lines = [f"| {line} |" for line in lines]
    what = f"mean of {seeds} seeds ± half of the 95% interval" if seeds > 1 else "one seed"
    about = " Heads are compared alone; fused: all, with the closed form added, as by `gpaco train`." if fused else ""
    ms = " ms: per image in a batch of 64, first seed, median."
    return "\n".join([*lines, "", f"Percent; {what}.{about}{ms}"])
