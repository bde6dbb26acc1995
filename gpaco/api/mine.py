"""mine(): which unlabeled images to label next, for the rare classes."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpaco.data.files import find_files
from gpaco.errors import UserError
from gpaco.pages.classification.candidates import MARK, write_candidates
from gpaco.system import distributed
from gpaco.system.faults import explained
from gpaco.system.files import write_atomic
from gpaco.system.outputs import output_file
from gpaco.system.progress import Progress, Say, quiet
from gpaco.system.words import counted, printable
from gpaco.tasks.classification.mining import RARE, candidates, chosen_classes, look_at
from gpaco.tasks.classification.predictor import load_classifiers
from gpaco.training.run import Run, as_run

COLUMNS = ("class", "rank", "path", "probability", "predicted", "predicted_probability")


def mine(
    run: Run | Path | str,
    pool: Path | str | Sequence[Path | str],
    *,
    out: Path | str | None = None,
    classes: str = RARE,
    n: int = 200,
    device: str | None = None,
    show: Progress | None = None,
    say: Say = quiet,
) -> list[dict[str, Any]]:
    """Return the most probable candidates for rare classes among unlabeled images, no two of them alike.

    A row has the class it is offered for, its rank there, the path, the probability of that class if all classes are
    equally likely, and the class that the model predicts with its probability.

    Args:
        run: a run that classifies.
        pool: files, folders (searched for images), tar shards and .txt lists with a path in each line.
        out: .csv file for the rows; a page with a thumbnail of each is written beside it, with the suffix .html.
        classes: "rare": classes with few training images, or else the rarest third; or names separated by commas.
        n: candidates in all, divided among the classes.

    >>> mine("runs/first", "unlabeled", out="candidates.csv", n=50)  # doctest: +SKIP
    """
    if n < 1:
        raise UserError(f"{n} candidates are none", "--n 200 is usual")
    run, where = as_run(run), distributed.choose_device(device)
    place, labeled = None, run.recipe.data.places
    if out is not None:
        place = output_file(out, {".csv": ",".join(COLUMNS) + "\r\n"}, labeled)  # no column was added
        output_file(place.with_suffix(".html"), {".html": MARK}, labeled)
    distributed.start(where, run.recipe.train.timeout)
    (predictor,) = load_classifiers([run], device=where)
    card = predictor.card
    wanted = chosen_classes(classes, card)
    files = find_files([pool] if isinstance(pool, Path | str) else pool)
    found, errors = look_at(predictor, files, show=show)
    if len(errors) == len(files):
        raise UserError(f"no image could be read: {next(iter(errors.values()))}", "give images that can be opened")
    if errors:
        say(f"{counted(len(files), 'file')}, {len(errors)} of them could not be read: {next(iter(errors.values()))}")
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
    if place is not None and distributed.rank() == 0:
        text = io.StringIO(newline="")
        csv.writer(text).writerows([COLUMNS, *(row.values() for row in rows)])
        with explained(f"cannot write {place}", "choose another --out"):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(place, text.getvalue().encode("utf-8", "backslashreplace"))
        by_path = {printable(str(file)): file for file in files}
        counts = dict(zip(card.classes, card.counts, strict=True)) if card.counts else {}
        write_candidates(place.with_suffix(".html"), rows, by_path, counts, run=str(run.folder), pool=len(files))
    distributed.barrier()
    return rows
