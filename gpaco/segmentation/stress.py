"""robustness() of a segmenter: 1 - mIoU on corrupted pictures, by corruption, severity and group of classes."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpaco.conditions import CLEAN, corrupted
from gpaco.corruption import CORRUPTIONS, VERSION, chosen, constants_for, corrupt
from gpaco.data.random import permutation
from gpaco.data.shifted import Condition
from gpaco.distortions import frost_folder
from gpaco.errors import UserError
from gpaco.files import append_jsonl, trim_jsonl, write_atomic
from gpaco.metrics import GROUPS
from gpaco.progress import Say
from gpaco.run import Run, as_run
from gpaco.segmentation.evaluating import Pixels, ScenePredictor, evaluate_scenes, load_segmenter, scenes_of
from gpaco.segmentation.scenes import Scenes
from gpaco.segmentation.scoring import share_groups
from gpaco.stress_results import Bar, Measured, missing_conditions, summary


def scene_robustness(
    run: Run,
    data: Path | str | None,
    *,
    baseline: Path | str | None,
    corruptions: str | None,
    severities: Sequence[int],
    subset: int | None,
    seed: int,
    constants: str | None,
    which: str,
    device: torch.device,
    out: Path | str | None,
    say: Say,
    bar: Bar,
) -> dict[str, Any]:
    """What `gpaco.robustness` returns for a run that segments. Pictures are corrupted at their own size."""
    predictor = load_segmenter(run, which=which, device=device)
    part, whole = scenes_of(run, data, predictor.classes, say)
    numbers = np.sort(permutation(seed, 0, len(whole))[:subset])
    if not len(numbers) or (subset is not None and subset < 1):
        raise UserError(f"a subset of {subset} pictures is none", "--subset 100 is usual")
    scenes = whole.subset(numbers)
    names, notes = chosen(corruptions), list[str]()
    conditions = [CLEAN, *((name, severity) for name in CORRUPTIONS if name in names for severity in severities)]
    notes += missing_conditions(conditions)
    if "frost" in names:
        frost_folder()  # an error now rather than in the middle
    table = constants or constants_for(min(scenes.load_image(0).shape[:2]))
    folder = Path(out) if out is not None else run.folder
    folder.mkdir(parents=True, exist_ok=True)
    say(f"{len(scenes):,} pictures, {len(conditions) - 1} conditions")

    def measured(model: ScenePredictor) -> Measured:
        return _measure(model, scenes, numbers, conditions, seed, table, folder / "robustness.jsonl", bar, say)

    other = None
    if baseline is not None:
        one = load_segmenter(as_run(baseline), which=which, device=device)
        if one.classes != predictor.classes:
            raise UserError(f"{baseline} does not have the same classes", "choose a baseline trained on the same ones")
        say(f"the baseline, {baseline}:")
        other = replace(measured(one), name=str(baseline), by_group=one.about["counts"] == predictor.about["counts"])
        say("the run:")
    else:
        notes.append("mce and relative_mce need a baseline: --baseline RUN")
    about = predictor.about
    group = share_groups(about["counts"], about["many"], about["few"])
    sizes = {name: int((group == name).sum()) for name in GROUPS}
    cuts = {"many": about["many"], "few": about["few"]}
    result = summary(measured(predictor), other, sizes, cuts, conditions, notes) | {
        "measure": "1 - mIoU",
        "run": str(run.folder),
        "data": str(data) if data is not None else run.recipe.data.path,
        "set": "corrupted here",
        "evaluated_on": part,
        "n": len(scenes),
        "subset": subset,
        "seed": seed,
        "constants": table,
        "prior": None,
        "unbiased": False,
    }
    name = "robustness" + (f"-{Path(data).resolve().stem}" if data is not None else "") + ".json"
    write_atomic(folder / name, json.dumps(result, indent=1))
    say(f"written: {folder / name}")
    return result


def _measure(
    model: ScenePredictor,
    scenes: Scenes,
    numbers: NDArray[np.int64],
    conditions: Sequence[Condition],
    seed: int,
    constants: str,
    log: Path,
    bar: Bar,
    say: Say,
) -> Measured:
    """The errors under each condition: from the log, or computed and written there.

    `numbers` are those of the pictures in the whole set: each is corrupted alike in every subset.
    """
    common = _digest(model, scenes, [VERSION, seed, constants, numbers.tolist()])
    keys = {condition: hashlib.sha256(f"{common} {condition}".encode()).hexdigest() for condition in conditions}
    known = {row["key"]: row for row in trim_jsonl(log, lambda row: "key" in row)}
    rows = {condition: known[key] for condition, key in keys.items() if key in known}
    if rows and len(rows) < len(conditions):
        say(f"{len(rows)} conditions are known from before")
    todo = [condition for condition in conditions if condition not in rows]
    with bar("robustness") as show:
        for done, condition in enumerate(todo):

            def changed(image: Pixels, i: int, condition: Condition = condition) -> Pixels:
                if condition == CLEAN:
                    return image
                name, severity = condition
                return corrupted(
                    image,
                    lambda one: corrupt(one, name, severity, seed=seed, index=int(numbers[i]), constants=constants),
                )

            def told(now: int, total: int, before: int = done) -> None:
                show(before * total + now, len(todo) * total)

            result = evaluate_scenes(model, scenes, change=changed, show=told)
            # A group of classes that no mask has would get an IoU from mistakes alone.
            there = {"miou", *(row["group"] for row in result["per_class"] if row["test"])}
            known_ious = {key: result[key] if key in there else None for key in ("miou", *GROUPS)}
            lost = {key: None if value is None else 1 - value for key, value in known_ious.items()}
            row = {"key": keys[condition], "condition": condition[0], "severity": condition[1], "n": len(scenes)}
            rows[condition] = row | {"error": lost.pop("miou"), **lost}
            append_jsonl(log, rows[condition])
    return Measured({condition: rows[condition] for condition in conditions}, [])


def _digest(model: ScenePredictor, scenes: Scenes, words: list[Any]) -> str:
    """Everything that an error depends on, beside the condition."""
    state = hashlib.sha256(json.dumps([words, model.about], sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        state.update(name.encode())
        state.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    state.update(repr((scenes.classes, scenes.decode)).encode())
    for path in (*scenes.images, *scenes.masks):
        place = path.stat() if path.exists() else None
        state.update(f"{path} {place and (place.st_size, place.st_mtime_ns)}\n".encode(errors="surrogateescape"))
    return state.hexdigest()
