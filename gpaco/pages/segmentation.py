"""The page about segmenters: IoU against the share of pixels, confusions between classes, the worst images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpaco.errors import Problem, UserError
from gpaco.pages.paper_number import paper_number
from gpaco.pages.render import Facts, Table, page_script, percent, safe_json, thumbnail, write_files
from gpaco.pages.runs import read_robustness, short_names
from gpaco.system.progress import Say
from gpaco.system.words import join_words, plural, some
from gpaco.tasks.segmentation.evaluation import evaluation_part, segment
from gpaco.tasks.segmentation.masks import colored
from gpaco.tasks.segmentation.predictor import load_segmenter
from gpaco.tasks.segmentation.scenes import SceneSplits, in_order_of
from gpaco.training.run import Run

SHOWN = 6  # images
SIDE, QUALITY = 360, 82  # pixels of the longer side at most; JPEG quality
PAIRS = 20  # confusions listed
MATRIX = 40  # most classes for which the whole matrix is shown
MARKED = (255, 0, 200)  # color of wrong pixels, which are drawn in stripes to differ from any class
SCRIPTS = ("charts.js", "saving.js", "segmentation.js")
_SAME = {  # metrics that runs on one page share
    "counts": "training pixels",
    "cuts": "limits for many and few",
    "evaluated_on": "test splits",
    "pixels": "test images",
}


def write_page(
    runs: list[Run], page: Path, *, names: Sequence[str] | None, with_images: bool, splits: SceneSplits | None, say: Say
) -> Path:
    """Write the page about segmenters with the same classes, with images from the data of the first run.

    `splits` is that data, if already read.
    """
    facts = collect(runs, names or short_names(runs))
    if with_images:
        try:
            facts["images"] = worst_images(runs[0], facts["runs"][0]["worst"], splits)
        except Problem as error:
            say(f"no images: {error.cause}")
    facts |= page_script(SCRIPTS) | {"json": safe_json(charted(facts))}
    return write_files(page, "segmentation.html", {"classes": _class_table(facts)}, **facts)


def charted(facts: Facts) -> Facts:
    """Return the data that the script of the page draws."""
    first = facts["runs"][0]
    return {
        "runs": [run["name"] for run in facts["runs"]],
        "cuts": {name: first["cuts"][name] / len(facts["classes"]) for name in ("many", "few")},
        "classes": [
            {"name": row["name"], "share": row["share"], "iou": [run["iou"] for run in row["runs"]]}
            for row in facts["classes"]
        ],
    }


def collect(runs: Sequence[Run], run_names: Sequence[str]) -> Facts:
    """Return what the page shows, except its images."""
    found, robustness = [], []
    for run, name in zip(runs, run_names, strict=True):
        found.append(run.metrics | {"name": name, "epochs": run.recipe.train.epochs, "model": run.recipe.model.name})
        if (file := read_robustness(run.folder)) is not None:
            robustness.append({"name": name, "file": file})
    names = [row["name"] for row in found[0]["per_class"]]
    for other in found[1:]:
        if [row["name"] for row in other["per_class"]] != names:
            raise UserError("these runs do not have the same classes", "give runs on the same data")
        for key, what in _SAME.items():
            if other[key] != found[0][key]:
                raise UserError(
                    f"{other['name']} and {found[0]['name']} have different {what}",
                    "give runs with the same data and limits",
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
        "sentence": sentence(found),
        "robustness": robustness,
        "paper": list(filter(None, (_beside_the_paper(run) for run in runs))),
        "images": [],
    }


def _beside_the_paper(run: Run) -> Facts | None:
    metrics = run.metrics
    return paper_number(run, metrics["miou"], **metrics["intervals"]["miou"])


def sentence(runs: Sequence[Facts]) -> str:
    """Return a few sentences on what stands out: the best run, rare classes, and the worst class."""
    best = max(runs, key=lambda run: run["miou"] or 0)
    over = f"over {best['measured']} of {plural(len(best['per_class']), 'class')}"
    words = [f"Mean IoU is {percent(best['miou'])}% {over}."]
    if len(runs) > 1:
        others = [f"{percent(run['miou'])}% by {run['name']}" for run in runs if run is not best]
        words = [
            f"{best['name']} has the highest mean IoU: {percent(best['miou'])}% {over}, against {join_words(others)}."
        ]
    if best["few"] is not None and best["many"] is not None:
        both = f"{percent(best['few'], 0)}% against {percent(best['many'], 0)}%"
        words.append(f"Classes with few pixels reach {both} for those with many.")
    known = [row for row in best["per_class"] if row["iou"] is not None and row["test"]]
    if known:
        low = min(row["iou"] for row in known)
        worst = [row["name"] for row in known if row["iou"] == low]
        which = f"The worst class is {worst[0]}" if len(worst) == 1 else f"The worst classes are {some(worst)}"
        words.append(f"{which}: {percent(low)}%.")
    return " ".join(words)


def worst_images(run: Run, worst: Sequence[Facts], splits: SceneSplits | None) -> list[Facts]:
    """Return the images with the lowest IoU, each with its mask, the prediction and the errors."""
    predictor = load_segmenter(run)
    if splits is None:
        _, scenes = evaluation_part(run, None, predictor.classes)
    else:
        scenes = in_order_of(dict(splits.parts())[splits.reported(run.recipe.data.evaluate_on)[0]], predictor.classes)
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
                "image": thumbnail(image, SIDE, QUALITY),
                "truth": thumbnail(colored(mask, palette), SIDE, QUALITY),
                "found": thumbnail(colored(classes, palette), SIDE, QUALITY),
                "errors": thumbnail(errors_marked(image, wrong, labeled), SIDE, QUALITY),
                "legend": [(predictor.classes[c], "#{:02x}{:02x}{:02x}".format(*palette[c])) for c in seen],
            }
        )
    return rows


def errors_marked(image: NDArray[np.uint8], wrong: NDArray[np.bool_], labeled: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the image in gray, wrong pixels in stripes, unlabeled pixels nearly black."""
    gray = np.repeat(image.mean(2, keepdims=True), 3, 2)
    gray[~labeled] *= 0.25
    rows, columns = np.indices(wrong.shape)
    stripe = (rows + columns) * 60 // sum(wrong.shape) % 2 == 0
    gray[wrong & stripe] = MARKED
    gray[wrong & ~stripe] = 0.5 * gray[wrong & ~stripe] + 0.5 * np.array(MARKED)
    marked: NDArray[np.uint8] = gray.round().astype(np.uint8)
    return marked


def _class_table(facts: Facts) -> Table:
    keys = ("iou", "recall", "precision", "boundary_iou")
    header = [f"{run['name']} {key}" for run in facts["runs"] for key in keys]
    rows = [
        [row["name"], row["group"], row["pixels"], row["share"], *(run[key] for run in row["runs"] for key in keys)]
        for row in facts["classes"]
    ]
    return ["class", "group", "training pixels", "share", *header], rows
