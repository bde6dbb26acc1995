"""Run folders made from logits, without a model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpaco.metrics.classification import summarize
from gpaco.pages.classification.evidence import Evidence, gather
from gpaco.recipes import recipe as recipes
from gpaco.training.run import Run

HOSTILE = ("<script>alert(1)</script>", "\"quotes\" & 'more', a,b", "\U0001f986 \u202egnp.txt", "plain")


def write_run(
    folder: Path,
    logits: npt.ArrayLike,
    labels: npt.ArrayLike,
    counts: npt.ArrayLike,
    *,
    classes: tuple[str, ...] | None = None,
    names: tuple[str, ...] | None = None,
    method: str = "gpaco",
    data: str = "gone",
    analysis: dict[str, Any] | None = None,
) -> Run:
    """Write the folder of a run with these logits (N, C)."""
    folder.mkdir(parents=True)
    scores, truth, trained = np.asarray(logits, np.float32), np.asarray(labels, np.int64), np.asarray(counts)
    known = classes or tuple(f"class {c}" for c in range(scores.shape[1]))
    recipe = recipes.override(recipes.Recipe(), [f"method.name={method}", f"data.path={data}"])
    (folder / "recipe.toml").write_text(recipes.dumps(recipe))
    about = {
        "evaluated_on": "test",
        "selected_on": "last epoch",
        "seed": 3,
        "method": method,
        "assumes": "train" if method == "ce" else "uniform",
        "counts": trained.tolist(),
        "environment": {"torch": "0"},
    }
    (folder / "metrics.json").write_text(json.dumps(summarize(scores, truth, trained, known) | about))
    images = names or tuple(f"test/{i}" for i in range(len(truth)))
    np.savez(folder / "predictions.npz", logits=scores, labels=truth, names=np.array(images, dtype=str))
    if analysis is not None:
        (folder / "analysis.json").write_text(json.dumps(analysis))
    return Run(folder)


def tail_run(folder: Path, *, seed: int = 0, images: int = 300, num_classes: int = 12, **options: Any) -> Run:
    """Write a run whose classes have 200 to 2 training images; rarer classes are recognized less often."""
    rng = np.random.default_rng(seed)
    counts = np.geomspace(200, 2, num_classes).astype(int)
    labels = np.arange(images) % num_classes
    logits = rng.normal(0, 1.5, (images, num_classes))
    logits[np.arange(images), labels] += 1.2 * np.log10(counts[labels]) + 0.5
    return write_run(folder, logits, labels, counts, **options)


def evidence(folder: Path, *args: Any, **options: Any) -> Evidence:
    return gather([write_run(folder, *args, **options)])[0]
