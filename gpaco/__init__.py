"""Generalized parametric contrastive learning for long-tailed images.

`import gpaco` costs nothing: each public name is fetched from its module when it is first used.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the public names; `_homes` reads them from here
    from gpaco import analysis as analysis
    from gpaco.classical import balanced_softmax_loss as balanced_softmax_loss
    from gpaco.classical import class_balanced_weights as class_balanced_weights
    from gpaco.classical import focal_loss as focal_loss
    from gpaco.classical import ldam_loss as ldam_loss
    from gpaco.comparison import compare as compare
    from gpaco.evaluation import evaluate as evaluate
    from gpaco.exporting import export as export
    from gpaco.loss import GPaCoLoss as GPaCoLoss
    from gpaco.loss import gpaco_loss as gpaco_loss
    from gpaco.loss import supcon_loss as supcon_loss
    from gpaco.memory import Memory as Memory
    from gpaco.model import Classifier as Classifier
    from gpaco.pages.page import report as report
    from gpaco.pixels import pixel_gpaco_loss as pixel_gpaco_loss
    from gpaco.prediction import predict as predict
    from gpaco.run import load as load
    from gpaco.running import train as train
    from gpaco.stress import robustness as robustness

__version__ = "0.1.0"


def _homes() -> dict[str, str]:
    """Return the module of each public name."""
    here = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in here.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {name.name: str(node.module) for node in imports for name in node.names}


_HOMES = _homes()
__all__ = sorted(["__version__", *_HOMES])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gpaco' has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}")
    home = _HOMES[name]
    value = import_module(f"gpaco.{name}") if home == "gpaco" else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
