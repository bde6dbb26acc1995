"""Generalized parametric contrastive learning for long-tailed images.

`import gpaco` is fast: each public name is imported from its module on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers; `_HOME` does the same at run time
    from gpaco import analysis as analysis
    from gpaco.api.compare import compare as compare
    from gpaco.api.estimator import TailClassifier as TailClassifier
    from gpaco.api.evaluate import evaluate as evaluate
    from gpaco.api.export import export as export
    from gpaco.api.latency import latency as latency
    from gpaco.api.load import load as load
    from gpaco.api.mine import mine as mine
    from gpaco.api.predict import predict as predict
    from gpaco.api.push import push as push
    from gpaco.api.report import report as report
    from gpaco.api.robustness import robustness as robustness
    from gpaco.api.serve import serve as serve
    from gpaco.api.train import train as train
    from gpaco.losses.classical import balanced_softmax_loss as balanced_softmax_loss
    from gpaco.losses.classical import class_balanced_weights as class_balanced_weights
    from gpaco.losses.classical import focal_loss as focal_loss
    from gpaco.losses.contrastive import gpaco_loss as gpaco_loss
    from gpaco.losses.contrastive import supcon_loss as supcon_loss
    from gpaco.losses.criterion import GPaCoLoss as GPaCoLoss
    from gpaco.losses.memory import Memory as Memory
    from gpaco.losses.pixels import pixel_gpaco_loss as pixel_gpaco_loss
    from gpaco.models.classifier import Classifier as Classifier

__version__ = "0.2.0"

_VERBS = "compare evaluate export latency load mine predict push report robustness serve train"
_HOME = {
    "Classifier": "gpaco.models.classifier",
    "GPaCoLoss": "gpaco.losses.criterion",
    "Memory": "gpaco.losses.memory",
    "TailClassifier": "gpaco.api.estimator",
    "analysis": "gpaco.analysis",  # the module itself
    "balanced_softmax_loss": "gpaco.losses.classical",
    "class_balanced_weights": "gpaco.losses.classical",
    "focal_loss": "gpaco.losses.classical",
    "gpaco_loss": "gpaco.losses.contrastive",
    "pixel_gpaco_loss": "gpaco.losses.pixels",
    "supcon_loss": "gpaco.losses.contrastive",
} | {name: f"gpaco.api.{name}" for name in _VERBS.split()}
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
