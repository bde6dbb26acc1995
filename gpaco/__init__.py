# ruff: noqa: F401
"""Generalized parametric contrastive learning for long-tailed images.

`import gpaco` costs nothing: each public name is fetched from its module when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers; `_HOME` says the same to Python
    from gpaco import analysis
    from gpaco.api.compare import compare
    from gpaco.api.export import export
    from gpaco.api.report import report
    from gpaco.api.train import train
    from gpaco.losses.classical import balanced_softmax_loss, class_balanced_weights, focal_loss, ldam_loss
    from gpaco.losses.contrastive import GPaCoLoss, gpaco_loss, supcon_loss
    from gpaco.losses.memory import Memory
    from gpaco.losses.pixels import pixel_gpaco_loss
    from gpaco.models.classifier import Classifier
    from gpaco.tasks.classification.evaluation import evaluate
    from gpaco.tasks.classification.prediction import predict
    from gpaco.tasks.classification.robustness import robustness
    from gpaco.training.run import load

__version__ = "0.1.0"

_HOME = {
    "Classifier": "gpaco.models.classifier",
    "GPaCoLoss": "gpaco.losses.contrastive",
    "Memory": "gpaco.losses.memory",
    "analysis": "gpaco.analysis",  # the module itself
    "balanced_softmax_loss": "gpaco.losses.classical",
    "class_balanced_weights": "gpaco.losses.classical",
    "compare": "gpaco.api.compare",
    "evaluate": "gpaco.tasks.classification.evaluation",
    "export": "gpaco.api.export",
    "focal_loss": "gpaco.losses.classical",
    "gpaco_loss": "gpaco.losses.contrastive",
    "ldam_loss": "gpaco.losses.classical",
    "load": "gpaco.training.run",
    "pixel_gpaco_loss": "gpaco.losses.pixels",
    "predict": "gpaco.tasks.classification.prediction",
    "report": "gpaco.api.report",
    "robustness": "gpaco.tasks.classification.robustness",
    "supcon_loss": "gpaco.losses.contrastive",
    "train": "gpaco.api.train",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gpaco' has no attribute {name!r}; it has {', '.join(_HOME)}")
    module = import_module(_HOME[name])
    value = module if module.__name__ == f"gpaco.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
