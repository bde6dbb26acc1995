"""Generalized parametric contrastive learning for long-tailed images.

`import gpaco` costs nothing: each public name is fetched from its module when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpaco import analysis
    from gpaco.classical import balanced_softmax_loss, class_balanced_weights, focal_loss, ldam_loss
    from gpaco.comparison import compare
    from gpaco.evaluation import evaluate
    from gpaco.exporting import export
    from gpaco.loss import GPaCoLoss, gpaco_loss, supcon_loss
    from gpaco.memory import Memory
    from gpaco.model import Classifier
    from gpaco.pages.page import report
    from gpaco.pixels import pixel_gpaco_loss
    from gpaco.prediction import predict
    from gpaco.run import load
    from gpaco.running import train
    from gpaco.stress import robustness

__version__ = "0.1.0"

_HOME = {
    "GPaCoLoss": "gpaco.loss",
    "gpaco_loss": "gpaco.loss",
    "supcon_loss": "gpaco.loss",
    "pixel_gpaco_loss": "gpaco.pixels",
    "Memory": "gpaco.memory",
    "balanced_softmax_loss": "gpaco.classical",
    "focal_loss": "gpaco.classical",
    "class_balanced_weights": "gpaco.classical",
    "ldam_loss": "gpaco.classical",
    "Classifier": "gpaco.model",
    "train": "gpaco.running",
    "evaluate": "gpaco.evaluation",
    "export": "gpaco.exporting",
    "predict": "gpaco.prediction",
    "compare": "gpaco.comparison",
    "load": "gpaco.run",
    "report": "gpaco.pages.page",
    "analysis": "gpaco.analysis",  # the module itself
    "robustness": "gpaco.stress",
}

__all__ = [
    "Classifier",
    "GPaCoLoss",
    "Memory",
    "__version__",
    "analysis",
    "balanced_softmax_loss",
    "class_balanced_weights",
    "compare",
    "evaluate",
    "export",
    "focal_loss",
    "gpaco_loss",
    "ldam_loss",
    "load",
    "pixel_gpaco_loss",
    "predict",
    "report",
    "robustness",
    "supcon_loss",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gpaco' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}")
    module = import_module(_HOME[name])
    value = module if module.__name__ == f"gpaco.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
