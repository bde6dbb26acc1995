"""The page about segmenters: IoU against the share of pixels, what is confused with what, the worst pictures."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpaco.errors import UserError
from gpaco.pages.render import csv_file, render, thumbnail
from gpaco.pages.robustness_file import read_robustness
from gpaco.system.files import write_atomic
from gpaco.system.progress import Say
from gpaco.training.run import Run

Facts = dict[str, Any]
SHOWN = 6  # pictures
SIDE, QUALITY = 360, 82  # pixels of the longer side, at most; of JPEG
PAIRS = 20  # confusions that are listed
MATRIX = 40  # classes up to which the whole matrix is shown
RED = (214, 39, 40)


def report_scenes(
    runs: Sequence[Run],
    out: Path | str = "report.html",
    *,
    names: Sequence[str] | None = None,
    with_pictures: bool = True,
    say: Say = lambda line: None,
) -> Path:
    """Write the page about runs that segment the same classes; returns where it is. Numbers go to a folder beside it.

    Pictures are of the first run, if its data is there.
    """
    page = Path(out)
    facts = collect(runs, names)
    facts["robustness"] = corrupted_figures(runs, facts["runs"])
    if with_pictures:
        try:
            facts["pictures"] = worst_pictures(runs[0], facts["runs"][0]["worst"])
        except UserError as error:
            say(f"no pictures: {error.cause}")
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "classes.csv", _classes_csv(facts))
    write_atomic(page, render("scenes.html", folder=folder.name, **facts))
    return page


def collect(runs: Sequence[Run], called: Sequence[str] | None = None) -> Facts:
    """Everything that the page says, but its pictures."""
    found = [
        run.metrics | {"name": name, "epochs": run.recipe.train.epochs, "model": run.recipe.model.name}
        for run, name in zip(runs, called or [run.folder.name for run in runs], strict=True)
    ]
    names = [row["name"] for row in found[0]["per_class"]]
    for other in found[1:]:
        if [row["name"] for row in other["per_class"]] != names:
            raise UserError("these runs do not have the same classes", "make a page of runs on the same data")
        for key, what in (("counts", "training pixels"), ("cuts", "limits of many and few")):
            if other[key] != found[0][key]:
                raise UserError(
                    f"{other['name']} has other {what} than {found[0]['name']}, so its classes have other groups",
                    "make a page of runs with the same training data and limits",
                )
    total = max(sum(found[0]["counts"]), 1)
    confusion = np.asarray(found[0]["confusion"], np.float64)
    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    wrong = [(i, j) for i in range(len(names)) for j in range(len(names)) if i != j and confusion[i, j] > 0]
    wrong.sort(key=lambda pair: -confusion[pair])
    return {
        "runs": found,
        "classes": [
            {
                "name": name,
                "group": found[0]["per_class"][c]["group"],
                "pixels": found[0]["counts"][c],
                "share": found[0]["counts"][c] / total,
                "runs": [run["per_class"][c] for run in found],
            }
            for c, name in enumerate(names)
        ],
        "confusions": [
            {
                "true": names[i],
                "found": names[j],
                "pixels": int(confusion[i, j]),
                "of_class": float(shares[i, j]),
                "of_errors": float(confusion[i, j] / max(confusion.sum() - np.trace(confusion), 1)),
            }
            for i, j in wrong[:PAIRS]
        ],
        "matrix": shares.tolist() if len(names) <= MATRIX else None,
        "chart": scatter(found, [count / total for count in found[0]["counts"]]),
        "pictures": [],
    }


def scatter(runs: Sequence[Facts], shares: Sequence[float]) -> Facts:
    """Places of the dots in a drawing of 680 x 300: the share of pixels on a logarithmic axis, IoU from 0 to 1."""
    known = [share for share in shares if share > 0]
    low, high = math.floor(math.log10(min(known))), max(math.ceil(math.log10(max(known))), 0)
    left, right, top, bottom = 46, 670, 12, 262

    def across(share: float) -> float:
        return round(left + (right - left) * (math.log10(share) - low) / max(high - low, 1), 1)

    def down(value: float) -> float:
        return round(bottom - (bottom - top) * value, 1)

    dots = [
        {"run": k, "x": across(shares[c]), "y": down(row["iou"]), "row": row, "share": shares[c]}
        for k, run in enumerate(runs)
        for c, row in enumerate(run["per_class"])
        if row["iou"] is not None and shares[c] > 0
    ]
    _name_what_fits(dots)
    cuts = runs[0]["cuts"]
    edges = {
        name: across(cuts[name] / len(shares)) for name in ("many", "few") if 10.0**low < cuts[name] / len(shares) < 1
    }
    return {
        "dots": dots,
        "x": [{"x": across(10.0**k), "text": f"{100 * 10.0**k:g} %"} for k in range(low, high + 1)],
        "y": [{"y": down(k / 5), "text": f"{20 * k} %"} for k in range(6)],
        "edges": edges,
        "box": {"left": left, "right": right, "top": top, "bottom": bottom},
    }


def _name_what_fits(dots: list[Facts]) -> None:
    """Give each dot the place of its class's name, left or right of it; None where it would lie on something else."""
    taken = [(dot["x"] - 5, dot["x"] + 5, dot["y"]) for dot in dots]
    for dot in dots:
        wide = 7.5 * len(dot["row"]["name"])
        dot["label"] = None
        for start, anchor in ((dot["x"] + 8, "start"), (dot["x"] - 8 - wide, "end")):
            free = all(start + wide < low or high < start or abs(dot["y"] - y) > 13 for low, high, y in taken)
            if free and start > 46 and start + wide < 690:
                dot["label"] = {"x": start if anchor == "start" else dot["x"] - 8, "anchor": anchor}
                taken.append((start, start + wide, dot["y"]))
                break


def corrupted_figures(runs: Sequence[Run], found: Sequence[Facts]) -> list[Facts]:
    """Of each run that was tested on corrupted pictures: what they cost; or what is wrong with its file."""
    rows = []
    for run, one in zip(runs, found, strict=True):
        file = read_robustness(run.folder)
        if file is not None:
            wrong = file if isinstance(file, str) else ""
            rows.append({"name": one["name"], "wrong": wrong, "file": file})
    return rows


def worst_pictures(run: Run, worst: Sequence[Facts]) -> list[Facts]:
    """The pictures with the lowest IoU, each beside its mask, what was found, and where that is wrong."""
    from gpaco.tasks.segmentation.evaluation import evaluation_part, segment
    from gpaco.tasks.segmentation.prediction import colored
    from gpaco.tasks.segmentation.predictor import load_segmenter

    predictor = load_segmenter(run)
    _, scenes = evaluation_part(run, None, predictor.classes)
    palette = np.array(predictor.card.palette, np.uint8)
    places = {name: i for i, name in enumerate(scenes.names)}
    rows = []
    for one in [one for one in worst if one["name"] in places][:SHOWN]:
        image, mask = scenes.load(places[one["name"]])
        classes, _ = segment(predictor, image)
        labeled = mask != 255
        wrong = labeled & (classes != mask)
        seen = np.unique(np.concatenate([mask[labeled], classes[labeled]]))
        rows.append(
            one
            | {
                "error": float(wrong.sum() / max(labeled.sum(), 1)),
                "picture": thumbnail(image, SIDE, QUALITY),
                "truth": thumbnail(colored(mask, palette), SIDE, QUALITY),
                "found": thumbnail(colored(classes, palette), SIDE, QUALITY),
                "errors": thumbnail(errors_marked(image, wrong, labeled), SIDE, QUALITY),
                "legend": [(predictor.classes[c], "#{:02x}{:02x}{:02x}".format(*palette[c])) for c in seen],
            }
        )
    return rows


def errors_marked(image: NDArray[np.uint8], wrong: NDArray[np.bool_], labeled: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The picture in gray, wrong pixels red, those that belong to no class nearly black."""
    gray = np.repeat(image.mean(2, keepdims=True), 3, 2)
    gray[~labeled] *= 0.25
    gray[wrong] = 0.35 * gray[wrong] + 0.65 * np.array(RED)
    marked: NDArray[np.uint8] = gray.round().astype(np.uint8)
    return marked


def _classes_csv(facts: Facts) -> bytes:
    keys = ("iou", "recall", "precision", "boundary_iou")
    names = [f"{run['name']} {key}" for run in facts["runs"] for key in keys]
    rows = [
        [row["name"], row["group"], row["pixels"], row["share"], *(run[key] for run in row["runs"] for key in keys)]
        for row in facts["classes"]
    ]
    return csv_file(["class", "group", "training pixels", "share", *names], rows)
