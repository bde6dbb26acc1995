"""mine(): which unlabeled images to label next, for the rare classes."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpaco.data.files import find_files
from gpaco.data.walk import real_paths
from gpaco.errors import UserError
from gpaco.pages.classification.candidates import MARK, write_candidates
from gpaco.system import distributed
from gpaco.system.faults import explained
from gpaco.system.files import write_atomic
from gpaco.system.outputs import output_file
from gpaco.system.progress import Progress, Say, no_progress, quiet
from gpaco.system.words import plural, printable
from gpaco.tasks.classification.evaluation import labeled_files
from gpaco.tasks.classification.mining import RARE, candidates, chosen_classes, look_at
from gpaco.tasks.classification.predictor import load_classifiers
from gpaco.training.run import Run, as_run

COLUMNS = ("class", "rank", "path", "probability", "predicted", "predicted_probability")


def mine(
    run: Run | Path | str,
    pool: Path | str | Sequence[Path | str],
    *,
    out: Path | str | None = None,
    classes: str | Sequence[str] = RARE,
    n: int = 200,
    device: str | None = None,
    progress: Progress = no_progress,
    say: Say = quiet,
) -> list[dict[str, Any]]:
    """Return candidates for rare classes among unlabeled images: predicted as the class, without near-duplicates.

    A row has the class it is a candidate for, its rank in that class, the path, the probability of that class if all
    classes are equally likely, and the class that the model predicts with its probability.

    Args:
        run: a run of a classifier.
        pool: files, folders (searched for images), tar shards, and .txt lists with one path per line.
        out: .csv file for the rows; a page with thumbnails is written beside it, with the suffix .html.
        classes: "rare": few-shot classes, or else the rarest third; or a list of names, or names separated by commas.
        n: total number of candidates, divided among the classes.

    >>> rows = mine("runs/first", "unlabeled", out="candidates.csv", n=5)
    >>> rows[0]["rank"]
    1
    """
    if n < 1:
        raise UserError(f"n must be at least 1, got {n}", "for example --n 200")
    run, where = as_run(run), distributed.choose_device(device)
    place, labeled = None, run.recipe.data.places
    if out is not None:
        place = output_file(out, {".csv": ",".join(COLUMNS) + "\r\n"}, labeled)  # not if somebody added a column
        output_file(place.with_suffix(".html"), {".html": MARK}, labeled)
    distributed.start(where, run.recipe.train.timeout)
    (predictor,) = load_classifiers([run], device=where)
    card = predictor.card
    wanted = chosen_classes(classes, card)
    files = list(dict.fromkeys(find_files([pool] if isinstance(pool, Path | str) else pool)))  # each image once
    own = labeled_files(run)
    new = [file for file, path in zip(files, real_paths(files), strict=True) if path not in own] if own else files
    if len(new) < len(files):
        say(f"left out: {plural(len(files) - len(new), 'image')} of the data of the run, which has their labels")
    if files and not new:
        raise UserError("all of these images are from the data of the run", "give unlabeled images")
    files = new
    found, errors = look_at(predictor, files, progress=progress)
    if len(errors) == len(files):
        raise UserError(f"no image could be read: {next(iter(errors.values()))}", "give images that can be opened")
    if errors:
        say(f"{plural(len(files), 'file')}, {len(errors)} of them could not be read: {next(iter(errors.values()))}")
    rows: list[dict[str, Any]] = []
    offered = dict.fromkeys(wanted, 0)
    for one in candidates(found, wanted, n):
        offered[one.label] += 1
        rows.append(
            {
                "class": card.classes[one.label],
                "rank": offered[one.label],
                "path": printable(str(files[one.image])),
                "probability": round(one.probability, 6),
                "predicted": card.classes[one.predicted],
                "predicted_probability": round(one.its_probability, 6),
            }
        )
    if len(rows) < n:
        say(f"{plural(len(rows), 'candidate')} instead of {n}: no other image is likely to be of these classes")
    if place is not None and distributed.rank() == 0:
        text = io.StringIO(newline="")
        csv.writer(text).writerows([COLUMNS, *(row.values() for row in rows)])
        with explained(f"cannot write {place}"):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(place, text.getvalue().encode("utf-8", "backslashreplace"))
        by_path = {printable(str(file)): file for file in files}
        counts = dict(zip(card.classes, card.counts, strict=True)) if card.counts else {}
        write_candidates(place.with_suffix(".html"), rows, by_path, counts, run=str(run.folder), pool=len(files))
    distributed.barrier()
    return rows
