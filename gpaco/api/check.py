"""check(): problems and facts to know about data before training."""

from collections.abc import Sequence
from typing import Any

from gpaco.api.tasks import TASKS
from gpaco.errors import UserError, nearest
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.system.distributed import choose_device
from gpaco.system.progress import Progress, no_progress
from gpaco.tasks.classification import check as classification
from gpaco.tasks.segmentation import check as segmentation


def check(
    data: str,
    task: str = "classification",
    root: str | None = None,
    settings: Sequence[str] = (),
    progress: Progress = no_progress,
) -> tuple[dict[str, Any], list[str]]:
    """Check data for a task. Return the findings, ready for JSON, and as lines to print.

    `settings` takes only "data.allow_outside=true".
    """
    if other := [word for word in settings if not word.startswith("data.allow_outside=")]:
        raise UserError(f"check has no setting {other[0]!r}", "it has data.allow_outside=true, for tables and lists")
    allow_outside = recipes.override(Recipe(), settings).data.allow_outside
    if task not in TASKS:
        raise UserError(
            f"there is no task {task!r}{nearest(task, TASKS)}", "--task classification or --task segmentation"
        )
    device = choose_device(None)
    if task == "segmentation":
        if root is not None:
            raise UserError("--root is for tables and lists of images", "leave it out")
        facts = segmentation.check(data, progress=progress, device=device)
        return facts, segmentation.lines(facts)
    facts = classification.check(data, root=root, allow_outside=allow_outside, progress=progress, device=device)
    return facts, classification.lines(facts)
