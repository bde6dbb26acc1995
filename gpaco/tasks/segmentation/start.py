"""Where training starts: the network, and the weights of its encoder."""

from gpaco.errors import UserError
from gpaco.models.backbones import NONE
from gpaco.models.weights.hub import is_hub
from gpaco.models.weights.packaged import PACKAGE, check_installed, package_of
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.system.progress import Say
from gpaco.tasks.segmentation.network import timm_name

MODEL = "upernet-efficientnet-lite0"  # compared with other decoders: docs/defaults.md, "The segmenter"
CHANNELS = 64  # of its decoder: wider ones are slower


def choose_start(recipe: Recipe, say: Say) -> Recipe:
    """Return the recipe with a network and weights for its encoder, if it does not set them; print one line."""
    asked = weights = recipe.model.weights
    name, channels = recipe.model.name, recipe.segmentation.channels
    if name == "auto":
        name, channels = MODEL, channels or CHANNELS
    if asked == "auto":
        weights = PACKAGE if package_of(timm_name(name)) else NONE
    say(_describe_start(name, asked, weights))
    return recipes.fill(recipe, {"model.name": name, "model.weights": weights, "segmentation.channels": channels})


def check_start(name: str, weights: str) -> None:
    """Raise an error for an unknown network, or if its encoder has no weights of this kind."""
    encoder = timm_name(name)
    if is_hub(weights) and not encoder:
        decoder, _, own = name.partition("-")
        raise UserError(
            f"{own} is an encoder of segmentation-models-pytorch, but the hub has only weights for timm's",
            f"use timm's: --model {decoder}-tu-{own}, or pass a file: --weights FILE.safetensors",
        )
    if weights != PACKAGE:
        return
    if package_of(encoder) is None:
        raise UserError(
            f"no package has pretrained weights for the encoder of {name}",
            f"choose --model {MODEL}, or other weights: --weights FILE, --weights none",
        )
    check_installed(encoder)


def _describe_start(name: str, asked: str, weights: str) -> str:
    if weights == PACKAGE:
        return f"start: {name}, its encoder with ImageNet-1k weights (--weights none starts from scratch)"
    if weights != NONE:
        return f"start: {name}, its encoder with weights from {weights}"
    if asked == NONE:
        return f"start: {name} from scratch"
    return (
        f"start: {name} from scratch, since no package has weights for its encoder "
        f"(--weights FILE.safetensors or hub uses those of a classifier; --model {MODEL} has packaged weights)"
    )
