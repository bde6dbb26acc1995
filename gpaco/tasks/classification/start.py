"""Where training starts: which backbone, with which weights, and which part of it is trained."""

from typing import Any

import torch

from gpaco import methods
from gpaco.data.samples import Samples
from gpaco.models.backbones import NONE
from gpaco.models.weights.packaged import PACKAGE, package_of
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.system.progress import Say
from gpaco.tasks.classification.image_sizes import SMALL, has_color, usual_side

BACKBONE = "tf_efficientnet_lite0"  # for photos
BETTER = ("vit_small_patch14_dinov2.lvd142m", "vit_base_patch16_clip_224.openai")  # need a download, and best a GPU
_TRANSFORMERS = ("vit_", "deit", "swin", "beit", "eva")
ENLARGED = 96  # side that small images are enlarged to for a pretrained backbone


def choose_start(recipe: Recipe, given: set[str], samples: Samples, device: torch.device, say: Say) -> Recipe:
    """Return the recipe with a backbone, weights and a part to train where it leaves them open; print one line.

    A head on cached features is trained on all images: no validation data are held out unless they are asked for.
    """
    small, gpu = usual_side(samples) <= SMALL, device.type != "cpu"
    asked, name, part = recipe.model.weights, recipe.model.name, recipe.train.part
    weights = asked
    if asked == "auto" and name == "auto":
        by_flag = "model.weights" in given and "model.name" not in given  # a recipe gives both
        weights = NONE if small and not by_flag else PACKAGE
    elif asked == "auto":
        weights = PACKAGE if package_of(name) else NONE
    if name == "auto" and weights != NONE:
        name = BETTER[0] if weights.startswith("hub") and gpu else BACKBONE
    if part == "auto":
        part = _part(recipe.method.name, name, pretrained=weights != NONE, gpu=gpu)
    chosen: dict[str, Any] = {"model.name": name, "model.weights": weights, "train.part": part}
    selects = recipe.method.tune_prior or recipe.method.name == "tau-norm"
    if part == "head" and "data.validation" not in given and not selects:
        chosen["data.validation"] = 0.0
    if small and weights == PACKAGE and not recipe.model.size:
        chosen["model.size"] = ENLARGED
    if "auto" in (asked, recipe.train.part):
        say(_in_words(asked, weights, name, part, gpu))
        if weights == NONE and small and has_color(samples) and asked == "auto":
            say(f"--weights auto: a pretrained backbone for these images, enlarged to {ENLARGED} pixels; often better")
    return recipes.fill(recipe, chosen)


def _part(method: str, model: str, *, pretrained: bool, gpu: bool) -> str:
    """Return the part of the model to train."""
    if method in methods.CLOSED_FORM:
        return "head"
    if not pretrained or method in methods.NEED_IMAGES:
        return "all"
    if method == "lift":
        return "lora" if model.startswith(_TRANSFORMERS) else "last-block"
    return "last-block" if gpu else "head"


def _in_words(asked: str, weights: str, name: str, part: str, gpu: bool) -> str:
    if weights == NONE:
        if asked == "auto" and name != "auto":
            return f"start: {name} from scratch, since no package has its weights (--weights hub downloads timm's)"
        return "start: from scratch, all layers train"
    what = "ImageNet-1k weights" if weights == PACKAGE else f"weights from {weights}"
    trained = {
        "head": "a head trains on its features, which are computed once",
        "last-block": "its last block and a head train",
        "all": "all layers train",
        "lora": "low-rank updates and a head train",
    }[part]
    other = "--train last-block trains more" if part == "head" else "--train head is faster"
    better = f"; stronger, with a download: --model {BETTER[0]} --weights hub" if gpu or weights == "hub" else ""
    return f"start: {name} with {what}; {trained} ({other}; --weights none starts from scratch){better}"
