"""The tasks by name. Only `cli`, `api` and `pages` know both."""

from gpaco.tasks.classification.task import Classification
from gpaco.tasks.segmentation.task import Segmentation
from gpaco.training.task import Task

TASKS: dict[str, type[Task]] = {"classification": Classification, "segmentation": Segmentation}
