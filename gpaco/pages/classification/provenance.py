"""Where the numbers of a run come from: settings, seeds, versions, hashes, and the command to reproduce it."""

import json
import shlex

from gpaco.errors import Problem
from gpaco.pages.classification.evidence import Evidence
from gpaco.pages.render import Facts
from gpaco.training import checkpoint
from gpaco.training.run import TUNING, Run, select_checkpoint


def provenance(one: Evidence) -> Facts:
    """Return how a run was made; None for anything unknown."""
    folder = one.run.folder
    recipe, tuning = folder / "recipe.toml", folder / TUNING
    return {
        "recipe": recipe.read_text(encoding="utf-8"),
        "command": shlex.join(["gpaco", "train", str(recipe), "--out", f"{folder}-again"]),
        "seed": one.metrics["seed"],
        "data_seed": one.run.recipe.data.seed,
        "environment": one.metrics["environment"],
        "calibration": one.metrics.get("calibration"),
        "parts": one.metrics.get("parts") or {},
        "tuning": json.loads(tuning.read_text()) if tuning.is_file() else None,
        "weights": weights_hash(one.run),
        "data": {name: part["sha256"] for name, part in one.data["parts"].items()} if one.data else None,
    }


def weights_hash(run: Run) -> Facts | None:
    """Return the step and SHA-256 of the evaluated weights; None if the checkpoint is gone."""
    try:
        found = select_checkpoint(run)
        files = checkpoint.hashes(found.path)
    except (Problem, OSError):
        return None
    return {"step": found.step, "sha256": files.get("ema.safetensors", files["model.safetensors"])}
