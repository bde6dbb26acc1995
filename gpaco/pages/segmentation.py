"""The page about segmenters: IoU against the share of pixels, confusions between classes, the worst images."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpaco.errors import UserError
from gpaco.pages.render import Facts, Table, thumbnail, write_files
from gpaco.pages.runs import read_robustness, short_names
from gpaco.system.progress import Say
from gpaco.tasks.segmentation.evaluation import evaluation_part, segment
from gpaco.tasks.segmentation.prediction import colored
from gpaco.tasks.segmentation.predictor import load_segmenter
from gpaco.tasks.segmentation.scenes import SceneSplits, in_order_of
from gpaco.training.run import Run

SHOWN = 6  # images
SIDE, QUALITY = 360, 82  # pixels of the longer side at most; JPEG quality
PAIRS = 20  # confusions listed
MATRIX = 40  # classes at most for showing the whole matrix
RED = (214, 39, 40)
WIDTH = 1080  # of the chart, as wide as the page


def write_page(
    runs: list[Run], page: Path, *, names: Sequence[str] | None, with_images: bool, splits: SceneSplits | None, say: Say
) -> Path:
    """Write the page about runs that segment the same classes, with images from the data of the first run.

    `splits` saves reading that data.
    """
    facts = collect(runs, names or short_names(runs))
    if with_images:
        try:
            facts["images"] = worst_images(runs[0], facts["runs"][0]["worst"], splits)
        except UserError as error:
            say(f"no images: {error.cause}")
    return write_files(page, "segmentation.html", {"classes": _class_table(facts)}, **facts)


def collect(runs: Sequence[Run], run_names: Sequence[str]) -> Facts:
    """Return what the page shows, except its images."""
    found, robustness = [], []
    for run, name in zip(runs, run_names, strict=True):
        found.append(run.metrics | {"name": name, "epochs": run.recipe.train.epochs, "model": run.recipe.model.name})
        if (file := read_robustness(run.folder)) is not None:
            robustness.append({"name": name, "problem": file if isinstance(file, str) else "", "file": file})
    names = [row["name"] for row in found[0]["per_class"]]
    for other in found[1:]:
        if [row["name"] for row in other["per_class"]] != names:
            raise UserError("these runs do not have the same classes", "give runs on the same data")
        for key, what in (("counts", "training pixels"), ("cuts", "limits for many and few")):
            if other[key] != found[0][key]:
                raise UserError(
                    f"{other['name']} and {found[0]['name']} have different {what}, so their groups differ",
                    "give runs with the same training data and limits",
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
        "robustness": robustness,
        "images": [],
    }


def scatter(runs: Sequence[Facts], shares: Sequence[float]) -> Facts:
    """Return positions of the dots in a chart of WIDTH x 340: share of pixels on a log axis against IoU from 0 to 1."""
    known = [share for share in shares if share > 0]
    low, high = math.floor(math.log10(min(known))), max(math.ceil(math.log10(max(known))), 0)
    left, right, top, bottom = 46, WIDTH - 24, 12, 302

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
    _place_labels(dots)
    cuts = {name: runs[0]["cuts"][name] / len(shares) for name in ("many", "few")}
    edges = {name: across(cut) for name, cut in cuts.items() if 10.0**low < cut < 1}
    return {
        "dots": dots,
        "x": [{"x": across(10.0**k), "text": f"{100 * 10.0**k:g} %"} for k in range(low, high + 1)],
        "y": [{"y": down(k / 5), "text": f"{20 * k} %"} for k in range(6)],
        "edges": edges,
        "box": {"width": WIDTH, "left": left, "right": right, "top": top, "bottom": bottom},
    }


def _place_labels(dots: list[Facts]) -> None:
    """Place the class name of each dot to its right or left; None where it would overlap something."""
    taken = [(dot["x"] - 5, dot["x"] + 5, dot["y"]) for dot in dots]
    for dot in dots:
        wide = 7.5 * len(dot["row"]["name"])
        dot["label"] = None
        for start, anchor in ((dot["x"] + 8, "start"), (dot["x"] - 8 - wide, "end")):
            free = all(start + wide < low or high < start or abs(dot["y"] - y) > 13 for low, high, y in taken)
            if free and start > 46 and start + wide < WIDTH:
                dot["label"] = {"x": start if anchor == "start" else dot["x"] - 8, "anchor": anchor}
                taken.append((start, start + wide, dot["y"]))
                break


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
    """Return the image in gray, wrong pixels red, unlabeled pixels nearly black."""
    gray = np.repeat(image.mean(2, keepdims=True), 3, 2)
    gray[~labeled] *= 0.25
    gray[wrong] = 0.35 * gray[wrong] + 0.65 * np.array(RED)
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
