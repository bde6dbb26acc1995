"""Results of a finished run: the metrics of its selected checkpoint."""

import json

import torch

from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.files import write_atomic
from gpaco.system.progress import Say, as_progress
from gpaco.tasks.segmentation.evaluation import evaluate_scenes
from gpaco.tasks.segmentation.predictor import load_segmenter
from gpaco.tasks.segmentation.scenes import SceneSplits
from gpaco.training.run import Run, newest, result_facts


def write_results(run: Run, recipe: Recipe, splits: SceneSplits, device: torch.device, say: Say) -> None:
    """Evaluate the selected checkpoint, then write `metrics.json`."""
    predictor = load_segmenter(run, device=device)
    split, scenes = splits.reported(recipe.data.evaluate_on)
    assert scenes is not None  # noqa: S101 - training holds back a test split
    result = evaluate_scenes(predictor, scenes, progress=as_progress(say, "evaluating"), intervals=True)
    if distributed.rank():
        return
    result |= result_facts(recipe, newest(run).state, split)
    result |= {"task": "segmentation", "counts": predictor.card.counts}
    write_atomic(run.folder / "metrics.json", json.dumps(result, indent=1))
