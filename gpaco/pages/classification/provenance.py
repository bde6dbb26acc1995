"""Where the numbers of a run come from: settings, seeds, versions, hashes, and the command to reproduce it."""

import shlex
from pathlib import Path

from gpaco.errors import Problem
from gpaco.pages.classification.evidence import Evidence
from gpaco.pages.render import Facts
from gpaco.training import checkpoint


def provenance(one: Evidence) -> Facts:
    """Return how a run was made; None for what is not known."""
    folder = one.run.folder
    recipe = folder / "recipe.toml"
    return {
        "folder": str(folder),
        "recipe": recipe.read_text(encoding="utf-8"),
        "command": shlex.join(["gpaco", "train", str(recipe), "--out", f"{folder}-again"]),
        "seed": one.metrics["seed"],
        "data_seed": one.run.recipe.data.seed,
        "environment": one.metrics["environment"],
        "weights": weights_hash(folder),
        "data": {name: part["sha256"] for name, part in one.data["parts"].items()} if one.data else None,
    }


def weights_hash(folder: Path) -> Facts | None:
    """Return step and SHA-256 of the evaluated weights; None if the checkpoint is gone."""
    try:
        newest = checkpoint.load(folder / "checkpoints", parts=[])
        best = newest.state["position"]["best_step"]
        path = newest.path if best is None else folder / "checkpoints" / f"step-{best:08d}"
        files = checkpoint.hashes(path)
    except (Problem, OSError):
        return None
    sha256 = files.get("ema.safetensors", files["model.safetensors"])
    return {"step": newest.step if best is None else best, "sha256": sha256}
