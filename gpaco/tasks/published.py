"""What published models of both tasks share."""

from pathlib import Path

from torch import Tensor, nn


def whole_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a network as safetensors takes them."""
    return {key: value.contiguous() for key, value in model.state_dict().items()}


def origin(weights: str) -> str:
    """Return where pretrained weights came from, without the folder of a file on this machine.

    >>> origin("/home/me/backbone.safetensors"), origin("hub:timm/resnet18.a1_in1k@main")
    ('backbone.safetensors', 'hub:timm/resnet18.a1_in1k@main')
    """
    return Path(weights).name if weights.endswith(".safetensors") else weights
