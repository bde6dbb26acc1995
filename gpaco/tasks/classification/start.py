"""Where training starts: the backbone, its weights, and the part to train."""

from typing import Any

import torch

from gpaco import methods
from gpaco.data.samples import Samples
from gpaco.errors import UserError
from gpaco.models.backbones import NONE, SMALL_IMAGES, is_known
from gpaco.models.weights.hub import is_hub
from gpaco.models.weights.packaged import PACKAGE, package_of
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.system.progress import Say
from gpaco.tasks.classification.image_sizes import SMALL, is_gray, usual_side

BACKBONE = "tf_efficientnet_lite0"  # for photos
# Stronger backbones, with their image size; they need a download, and preferably a GPU.
BETTER = {"vit_small_patch14_dinov2.lvd142m": 224, "vit_base_patch16_clip_224.openai": 224}
_TRANSFORMERS = ("vit_", "deit", "swin", "beit", "eva")
ENLARGED = 96  # side that small images are enlarged to for a pretrained backbone


def choose_start(recipe: Recipe, given: set[str], samples: Samples, device: torch.device, say: Say) -> Recipe:
    """Return the recipe with a backbone, weights and a part to train, if it does not set them; print one line.

    A head on cached features trains on all images: validation data is held out only on request.
    """
    small, gpu = usual_side(samples) <= SMALL, device.type != "cpu"
    asked, name, part = recipe.model.weights, recipe.model.name, recipe.train.part
    weights = asked
    if asked == "auto" and name == "auto":
        whole = part in ("auto", "all") and recipe.method.name not in methods.CLOSED_FORM
        weights = NONE if small and whole else PACKAGE
    elif asked == "auto":
        weights = PACKAGE if package_of(name) else NONE
    if name == "auto" and weights != NONE:
        name = _on_hub(weights) or (next(iter(BETTER)) if is_hub(weights) and gpu else BACKBONE)
    if part == "auto":
        part = _part(recipe.method.name, name, pretrained=weights != NONE, gpu=gpu)
    chosen: dict[str, Any] = {"model.name": name, "model.weights": weights, "train.part": part}
    selects = recipe.method.tune_prior or recipe.method.name == "tau-norm"
    if part == "head" and "data.validation" not in given and not selects:
        chosen["data.validation"] = 0.0
    if small and weights == PACKAGE and not recipe.model.size:
        chosen["model.size"] = ENLARGED
    if "auto" in (asked, recipe.train.part):
        closed = recipe.method.name in methods.CLOSED_FORM
        reason = "no GPU" if part == "head" != recipe.train.part and not (gpu or closed) else ""
        if weights == NONE and asked == "auto":
            reason = "small images" if name == "auto" else "no package has its weights"
            reason += "; --weights hub downloads timm's" if name not in ("auto", *SMALL_IMAGES) else ""
        say(_describe_start(weights, name, part, reason, gpu, recipe.method.name))
        if weights == NONE and small and asked == "auto" and not is_gray(samples):
            say(f"--weights package: a pretrained backbone for these images, scaled to {ENLARGED} pixels; often better")
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


def _on_hub(weights: str) -> str:
    """Return the name of the model whose weights are "hub:OWNER/NAME@REVISION"; "" for other weights."""
    if not weights.startswith("hub:"):
        return ""
    name = weights.partition("@")[0].rpartition("/")[2]
    if not is_known(name):
        raise UserError(f"{weights} does not say which of timm's models it is for", "name it: --model NAME")
    return name


def _describe_start(weights: str, name: str, part: str, reason: str, gpu: bool, method: str) -> str:
    untrained = weights == NONE
    trained = {
        "head": f"training a head on {'the features of an untrained network' if untrained else 'its features'}",
        "last-block": "training the last block and a head",
        "all": "training all layers",
        "lora": "training LoRA adapters and a head",
    }[part]
    if method in methods.CLOSED_FORM:
        trained = "computing a classifier in closed form from its features"
    since = f" ({reason})" if reason else ""
    if untrained:
        return f"start: {'' if name == 'auto' else name + ' '}from scratch{since}; {trained}"
    what = "ImageNet-1k weights" if weights == PACKAGE else f"weights from {weights}"
    other = "--train last-block trains more; " if part == "head" else "--train head is faster; "
    if method in methods.NEED_IMAGES or method in methods.CLOSED_FORM:  # they have one way to train
        other = ""
    better = ""
    if (gpu or weights == "hub") and name not in BETTER:
        better = f"\n  stronger, but downloaded: --weights hub --model {' or '.join(BETTER)}"
    return f"start: {name} with {what}; {trained}{since}\n  {other}--weights none starts from scratch{better}"
