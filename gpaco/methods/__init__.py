"""How a batch becomes a loss: the methods by name.

A method is an `nn.Module` that holds its own state (a memory, a momentum copy), so that this is saved with the run. It
is called with the model, the views of a batch and their labels, and returns the loss. method.py lists its hooks.
"""

from collections.abc import Callable

from torch import Tensor

from gpaco.methods.contrastive import GPaCo, MultiTask, SupCon
from gpaco.methods.method import Method, Setup
from gpaco.methods.paco import PaCo
from gpaco.methods.plain import balanced_softmax, class_balanced, cross_entropy, focal
from gpaco.models.classifier import Classifier
from gpaco.recipes.settings import Recipe

METHODS: dict[str, Callable[[Setup], Method]] = {
    "gpaco": GPaCo,
    "paco": PaCo,
    "supcon": SupCon,
    "multitask": MultiTask,
    "ce": cross_entropy,
    "balanced-softmax": balanced_softmax,
    "focal": focal,
    "class-balanced": class_balanced,
    "gaussian": lambda _: Method(),
}
# Methods whose raw logits assume the training class distribution at test time; the others assume a uniform one.
ASSUMES_TRAIN = {"ce", "focal"}
WITHOUT_CLASSIFIER = {"supcon"}  # trains the features only; the class centers stay unchanged
CLOSED_FORM = {"gaussian"}  # no step of training: computed from the features of a frozen backbone
TRAINED = tuple(name for name in METHODS if name not in CLOSED_FORM)
WITHOUT_PROJECTOR = {"ce", "balanced-softmax", "focal", "class-balanced", *CLOSED_FORM}


def build(recipe: Recipe, model: Classifier, num_classes: int, class_counts: Tensor) -> Method:
    """Return the method of a recipe, for data with these class counts."""
    views = 2 if recipe.views.second else 1
    return METHODS[recipe.method.name](Setup(model, recipe.method, num_classes, class_counts, recipe.model.dim, views))


def assumed_prior(recipe: Recipe) -> str:
    """Return the class distribution that raw logits assume at test time: "train" or "uniform"."""
    plain = recipe.method.name == "multitask" and recipe.method.base == "ce"
    parametric = recipe.method.name in ("gpaco", "paco") and recipe.method.prior == "none"
    return "train" if recipe.method.name in ASSUMES_TRAIN or plain or parametric else "uniform"
