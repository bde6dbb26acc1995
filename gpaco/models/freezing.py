"""Which part of a classifier is trained."""

from torch import nn

from gpaco.errors import UserError
from gpaco.models.classifier import Classifier, batch_norms
from gpaco.models.lora import adapt
from gpaco.recipes.settings import Train


def freeze(model: Classifier, part: str, *, lora_rank: int = Train.lora_rank) -> int:
    """Select the parameters to train, and return their number.

    The centers, the projector and the hidden layer are always trained, and of the backbone:

        "all"         everything;
        "last-block"  the last block of the last stage, the layers after it, and scale and shift of every batch norm,
                      whose statistics keep updating: as released for Places-LT;
        "head"        nothing. It stays in evaluation mode even after `model.train()`: stored statistics in batch norm,
                      no dropout, so that an image has the same features in each epoch;
        "lora"        low-rank updates of its linear layers, which start at zero (lora.py). Its norms are frozen,
                      including batch-norm statistics; dropout and drop path remain active.
    """
    chosen: list[nn.Module] | list[nn.Parameter] = []
    if part == "last-block":
        chosen = _last_block(model.backbone)
    elif part == "lora":
        chosen = adapt(model.backbone, lora_rank)
    model.requires_grad_(True)
    model.backbone.requires_grad_(part == "all")
    for one in chosen:
        one.requires_grad_(True)
    model.backbone_fixed = part == "head"
    model.fixed_norms = batch_norms(model.backbone) if part == "lora" else []
    model.train(model.training)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _last_block(backbone: nn.Module) -> list[nn.Module]:
    """Return the last block of the last stage, the modules after the stages, and all batch norms."""
    children = dict(backbone.named_children())
    # ResNets (four stages, ours three), ViT and EfficientNet, ConvNeXt, Swin
    stages = next((name for name in ("layer4", "layer3", "blocks", "stages", "layers") if name in children), "")
    block = children.get(stages, nn.Identity())
    while isinstance(inner := getattr(block, "blocks", block), (nn.Sequential, nn.ModuleList)):
        block = inner[-1]
    if not list(block.children()):  # not found, or a single layer
        raise UserError(
            f"the last block of {type(backbone).__name__} is unknown",
            "train the head or all layers (--train head, --train all), or choose a ResNet, ViT, Swin or EfficientNet",
        )
    after = list(children)[list(children).index(stages) + 1 :]
    return [block, *(children[name] for name in after), *batch_norms(backbone)]
