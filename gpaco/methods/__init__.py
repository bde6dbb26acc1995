"""Methods by name: how a batch becomes a loss.

A method is an `nn.Module` that holds its own state (a memory, a momentum copy), so that it is saved with the run. It is
called with the model, the views of a batch and their labels, and returns the loss. method.py lists its hooks,
recipes/settings.py has its settings, and `network` below says what it changes in the network.
"""

from collections.abc import Callable

from torch import Tensor

from gpaco.methods.bcl import Bcl
from gpaco.methods.branches import Bbn, ResLt, Ride
from gpaco.methods.contrastive import GPaCo, MultiTask, SupCon
from gpaco.methods.decoupling import Crt, Lws, Mislas, Ncm, TauNorm
from gpaco.methods.lift import Lift
from gpaco.methods.memories import CausalNorm, Oltr
from gpaco.methods.method import Method, Setup
from gpaco.methods.paco import PaCo
from gpaco.methods.plain import BalancedSoftmax, ClassBalanced, CrossEntropy, Focal
from gpaco.methods.reweighted import CbFocal, LdamDrw
from gpaco.models.backbones import NONE, can_be_narrow
from gpaco.models.classifier import Classifier
from gpaco.models.networks import Network
from gpaco.recipes.settings import Recipe

METHODS: dict[str, Callable[[Setup], Method]] = {
    "gpaco": GPaCo,
    "paco": PaCo,
    "supcon": SupCon,
    "multitask": MultiTask,
    "ce": CrossEntropy,
    "balanced-softmax": BalancedSoftmax,
    "focal": Focal,
    "class-balanced": ClassBalanced,
    "gaussian": lambda _: Method(),
    "cb-focal": CbFocal,
    "ldam-drw": LdamDrw,
    "bcl": Bcl,
    "crt": Crt,
    "lws": Lws,
    "tau-norm": TauNorm,
    "ncm": lambda _: Ncm(),
    "mislas": Mislas,
    "bbn": lambda _: Bbn(),
    "causal-norm": lambda _: CausalNorm(),
    "reslt": ResLt,
    "ride": Ride,
    "oltr": Oltr,
    "lift": Lift,
}
# Methods whose raw logits assume the class distribution that training shows; the others assume a uniform one.
ASSUMES_TRAIN = {"ce", "focal", "crt", "lws", "mislas", "oltr"}
WITHOUT_CLASSIFIER = {"supcon"}  # trains the features only; the class centers stay as they are
CLOSED_FORM = {"gaussian"}  # computed from the features of a frozen backbone
UNTRAINED = {*CLOSED_FORM, "tau-norm", "ncm"}  # no training steps
PARAMETRIC = {"gpaco", "paco"}  # one softmax over class centers and samples
WITH_PROJECTOR = {"gpaco", "paco", "supcon", "multitask", "bcl"}
THREE_VIEWS = {"bcl"}  # the third is like the second
WEIGHTED_BATCH = ("ldam-drw", "ride")  # their class weights are normalized over the batch
SECOND_SAMPLER = {"bbn": "reversed"}  # every other image of a batch is drawn by this sampler
NEED_CLASSIFIER = {"lws", "tau-norm", "mislas", "oltr"}  # they continue from the classifier of the previous stage
NEED_IMAGES = {"mislas", "bbn", "reslt", "ride", "oltr"}  # they change the backbone or its batch norm
# Analyzed at the end of training: methods with linear class centers whose loss is a mean over the anchors.
ANALYZED = ("gpaco", "paco", "supcon", "multitask", "ce", "balanced-softmax", "focal", "class-balanced", "cb-focal")


def build(
    recipe: Recipe, model: Classifier, num_classes: int, class_counts: Tensor, train_counts: Tensor | None = None
) -> Method:
    """Return the method of a recipe, for data with these class counts: as shown by the sampler, and in the data."""
    views = 2 if recipe.views.second else 1
    own = class_counts if train_counts is None else train_counts
    setup = Setup(model, recipe.method, num_classes, class_counts, recipe.model.dim, views, own)
    return METHODS[recipe.method.name](setup)


def network(recipe: Recipe) -> Network:
    """Return what the method of a recipe changes in the network. This is the only place that knows."""
    name, settings = recipe.method.name, recipe.method
    if name in ("ldam-drw", "bcl"):
        return Network("cosine", "prototyped" if name == "bcl" else "plain", scale=settings.scale)
    if name in PARAMETRIC and settings.center_temperature:
        return Network("tempered", scale=settings.temperature)
    if name in ("lws", "mislas"):
        return Network("scaled")
    if name == "ncm":
        return Network("means")
    if name == "bbn":
        return Network(body="bilateral")
    if name == "causal-norm":
        return Network("causal", scale=16.0, number=settings.heads, effect=settings.effect)
    if name == "reslt":
        return Network("shared", "residual", number=3 if settings.tail else 2, power=settings.test_norm)
    if name == "ride":
        narrow = recipe.model.weights == NONE and can_be_narrow(recipe.model.name)
        return Network("experts", "experts", scale=settings.scale, number=settings.experts, narrow=narrow)
    if name == "oltr":
        return Network("meta", "attentive", scale=16.0)
    if name == "lift":
        one_crop = not settings.crops or (recipe.train.part == "head" and recipe.train.cached_views)
        return Network("cosine", scale=25.0, border=0 if one_crop else round(recipe.model.size * 24 / 224))
    return Network()


def projector(recipe: Recipe) -> str:
    """Return the kind of projector; "none" for a method without embeddings."""
    if recipe.method.name == "bcl":
        return "paco"  # two layers with batch norm, as in its paper
    return recipe.model.projector if recipe.method.name in WITH_PROJECTOR else "none"


def carried(method: str, name: str) -> str:
    """Return the name in a stage of this method for a tensor of the previous stage; "" if it is not carried over."""
    if name.startswith("centers."):
        if method == "crt":
            return ""
        if method == "oltr":
            return name.replace("centers.", "centers.hallucinator.")
    return name


def assumed_prior(recipe: Recipe) -> str:
    """Return the class distribution that raw logits assume at test time: "train", "uniform", or "train^0.5".

    The last is a power of what training shows: with tau * log prior in the loss, the power 1 - tau is left.
    """
    if recipe.train.sampler == "balanced":  # what training shows is uniform
        return "uniform"
    if recipe.method.name in ("balanced-softmax", "lift"):
        power = f"{1 - recipe.method.tau:g}"
        return {"0": "uniform", "1": "train"}.get(power, f"train^{power}")
    plain = recipe.method.name == "multitask" and recipe.method.base == "ce"
    parametric = recipe.method.name in PARAMETRIC and recipe.method.prior == "none"
    return "train" if recipe.method.name in ASSUMES_TRAIN or plain or parametric else "uniform"
